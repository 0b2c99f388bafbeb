"""Drives the chat page of a running server in a headless Chromium, and keeps pictures of it.

    python3 tests/tools/chat_page.py http://127.0.0.1:8080 docs/images

needs Chromium and PyPI's websockets. Sends by keyboard, sees text stream in, stops an answer, changes settings, reloads.
"""
import asyncio
import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import websockets

PORT = 19222


class Page:
    def __init__(self, socket):
        self.socket, self.next = socket, 0
        self.console = []

    async def call(self, method, **params):
        self.next += 1
        await self.socket.send(json.dumps({"id": self.next, "method": method, "params": params}))
        while True:
            answer = json.loads(await self.socket.recv())
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.console.append(answer["params"])
            if answer.get("id") == self.next:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]

    async def value(self, expression):
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    async def until(self, expression, seconds=30):
        for _ in range(int(seconds * 20)):
            if await self.value(expression):
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(expression + ": " + str(await self.value("document.getElementById('log').innerText"))[-160:])

    async def key(self, key, code, **more):
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    async def write(self, text):
        await self.value("document.getElementById('input').focus()")
        await self.call("Input.insertText", text=text)

    async def enter(self):
        await self.key("Enter", 13, text="\r")

    async def picture(self, path, scheme):
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        data = await self.call("Page.captureScreenshot", format="png")
        pathlib.Path(path).write_bytes(base64.b64decode(data["data"]))


async def drive(url, folder):
    for _ in range(200):
        try:
            tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{PORT}/json"))
            break
        except OSError:
            await asyncio.sleep(0.1)
    tab = next(t for t in tabs if t["type"] == "page")
    async with websockets.connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
        p = Page(socket)
        for domain in ("Page", "Runtime", "Log"):
            await p.call(domain + ".enable")
        await p.call("Emulation.setDeviceMetricsOverride", width=1100, height=720, deviceScaleFactor=1, mobile=False)
        await p.call("Page.navigate", url=url)
        await p.until("document.readyState === 'complete' && document.getElementById('model').textContent.includes('context')")
        # settings, then a message by keyboard
        await p.value("for (const [id, v] of [['temperature', '0'], ['max_tokens', '1800'], ['seed', '7']]) { document.getElementById(id).value = v; document.getElementById(id).dispatchEvent(new Event('change')); }")
        await p.write("Line 12: the quick brown")
        await p.enter()
        await p.until("(document.querySelector('.message.assistant .text') || {textContent: ''}).textContent.length > 20")
        streaming = await p.value("document.querySelectorAll('.message.running').length")
        await p.picture(f"{folder}/chat-page-dark.png", "dark")
        await p.key("Escape", 27)
        await p.until("!document.querySelector('.message.running') && document.getElementById('stop').hidden")
        stopped = await p.value("document.querySelector('.message.assistant .text').textContent.length")
        # a second turn runs to its end, and comes from the prefix cache
        await p.value("document.getElementById('max_tokens').value = '60'")
        await p.write("Line 5: the lazy dog")
        await p.enter()
        await p.until("document.querySelectorAll('.message.assistant').length === 2 && !document.querySelector('.message.running')")
        speed = await p.value("document.getElementById('speed').textContent")
        await asyncio.sleep(1.3)
        await p.picture(f"{folder}/chat-page-light.png", "light")
        pages = await p.value("document.querySelectorAll('#pages i.used, #pages i.shared').length")
        # reload: conversation and settings are still there
        await p.call("Page.reload")
        await p.until("document.querySelectorAll('.message').length === 4")
        kept = await p.value("document.getElementById('seed').value")
        # an error shows as one
        await p.value("document.getElementById('temperature').value = '-1'")
        await p.write("again")
        await p.enter()
        await p.until("!!document.querySelector('.message.error')")
        error = await p.value("document.querySelector('.message.error .text').textContent")
        await p.value("document.getElementById('clear').click()")
        await p.until("!document.querySelector('.message')")
        await p.call("Emulation.setDeviceMetricsOverride", width=390, height=760, deviceScaleFactor=1, mobile=True)
        overflow = await p.value("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        problems = [c for c in p.console if "400" not in json.dumps(c) and c.get("entry", {}).get("level") != "verbose"]
        result = {"streaming": streaming, "stopped_at": stopped, "speed": speed, "pages": pages, "seed_kept": kept, "error": error, "overflow": overflow, "console": problems}
        print(json.dumps(result, indent=1))
        assert streaming == 1 and stopped < 5000 and "tokens/s" in speed and pages > 0 and kept == "7" and "temperature" in error and not overflow and not problems


def main():
    url, folder = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as profile:
        browser = subprocess.Popen(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
                                    f"--remote-debugging-port={PORT}", "--remote-allow-origins=*", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(drive(url, folder))
        finally:
            browser.terminate()
            browser.wait()


if __name__ == "__main__":
    main()
