"""Text and code to train on, from Debian packages whose licences let anyone do so: one file a document under OUT, and OUT/SOURCES.md.

  python3 examples/corpus/make_corpus.py OUT [--large]       (needs apt-get and dpkg-deb; about 70 MB of packages, 50 MB of text)

Then: hysparse tokenizer train, hysparse data prepare (docs/training.md shows the commands)."""
import argparse
import gzip
import html.parser
import os
import re
import shutil
import subprocess

# package: (licence, how documents are found and read)
PACKAGES = {
    "python3.11-doc": ("PSF-2.0", [(r"/_sources/.*\.rst\.txt$", "plain")]),
    "libpython3.11-stdlib": ("PSF-2.0", [(r"\.py$", "plain")]),
    "sqlite3-doc": ("public domain", [(r"\.html$", "html")]),
    "python-django-doc": ("BSD-3-Clause", [(r"\.html$", "html")]),
    "postgresql-doc-15": ("PostgreSQL", [(r"\.html$", "html")]),
    "perl-doc": ("Artistic or GPL-1+", [(r"\.pod$", "pod")]),
    "perl-modules-5.36": ("Artistic or GPL-1+", [(r"\.(pod|pm)$", "pod")]),
}
# --large: another 97 MB of text, two thirds of it source code
MORE = {
    "golang-1.19-src": ("BSD-3-Clause", [(r"/src/.*(?<!_test)\.go$", "plain")]),
    "rust-src": ("MIT or Apache-2.0", [(r"/library/.*\.rs$", "plain")]),
    "linux-doc-6.1": ("GPL-2", [(r"/_sources/.*\.rst\.txt(\.gz)?$", "plain"), (r"/Documentation/.*\.rst(\.gz)?$", "plain")]),
    "libboost1.74-doc": ("BSL-1.0", [(r"\.html$", "html")]),
    "debian-handbook": ("GPL-2+ or CC-BY-SA-3.0", [(r"/en-US/.*\.html$", "html")]),
    "nodejs-doc": ("MIT", [(r"\.(md|html)(\.gz)?$", "html")]),
}
SKIPPED = {"script", "style", "nav", "head", "svg", "footer", "form"}
BLOCKS = {"p", "div", "li", "tr", "pre", "br", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "dd", "table", "ul", "ol", "section", "blockquote"}


class Text(html.parser.HTMLParser):
    """The words of a page, a line a block; preformatted text as it is."""

    def __init__(self):
        super().__init__()
        self.out, self.skip, self.pre = [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag in SKIPPED:
            self.skip.append(tag)
        self.pre += tag == "pre"
        if tag in BLOCKS:
            self.out.append("\n")

    def handle_endtag(self, tag):
        if self.skip and tag == self.skip[-1]:
            self.skip.pop()
        self.pre -= tag == "pre" and self.pre > 0
        if tag in BLOCKS:
            self.out.append("\n")

    def handle_data(self, data):
        if not self.skip:
            self.out.append(data if self.pre else re.sub(r"\s+", " ", data))


def from_html(source):
    page = Text()
    page.feed(source)
    lines = [line.rstrip() for line in "".join(page.out).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line if line.startswith("  ") else line.strip() for line in lines))


def from_pod(source):
    for _ in range(3):  # formatting codes may be nested: C<< x >>, L<text|target>, B<x>
        source = re.sub(r"\b[A-Z]<<+\s(.*?)\s>>+", r"\1", source, flags=re.S)
        source = re.sub(r"\bL<(?:([^<>|]*)\|)?([^<>]*)>", lambda m: m[1] or m[2], source)
        source = re.sub(r"\bE<lt>", "<", re.sub(r"\bE<gt>", ">", source))
        source = re.sub(r"\b[BCFIXSZ]<([^<>]*)>", r"\1", source)
    source = re.sub(r"^=(?:over|back|cut|pod|encoding|begin|end|for).*\n?", "", source, flags=re.M)
    return re.sub(r"^=(?:head\d|item)\s*", "", source, flags=re.M)


READ = {"plain": str, "html": from_html, "pod": from_pod}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--shortest", type=int, default=1000, help="characters; shorter documents are left out")
    p.add_argument("--longest", type=int, default=400_000, help="characters; longer ones are mostly tables")
    p.add_argument("--large", action="store_true", help="another 97 MB of text")
    a = p.parse_args()
    work = os.path.join(a.out, ".packages")
    os.makedirs(work, exist_ok=True)
    table, seen = ["| package | version | licence | documents | characters |", "|---|---|---|---|---|"], set()
    for package, (licence, kinds) in (PACKAGES | MORE if a.large else PACKAGES).items():
        subprocess.run(["apt-get", "-o", "APT::Sandbox::User=root", "download", package], cwd=work, check=True, stdout=subprocess.DEVNULL)
        archive = next(f for f in sorted(os.listdir(work)) if f.startswith(package + "_"))
        tree = os.path.join(work, package)
        os.makedirs(tree, exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", os.path.join(work, archive), tree], check=True)
        count = size = 0
        for folder, _, files in sorted(os.walk(tree)):
            for name in sorted(files):
                path = os.path.join(folder, name)
                how = next((how for pattern, how in kinds if re.search(pattern, path)), None)
                if how is None or os.path.islink(path):
                    continue
                with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8", errors="ignore") as f:
                    text = READ[how](f.read()).strip() + "\n"
                key = hash(text[:2000])
                if not a.shortest <= len(text) <= a.longest or key in seen:
                    continue
                seen.add(key)
                with open(os.path.join(a.out, f"{package}-{count:04d}.txt"), "w", encoding="utf-8") as f:
                    f.write(text)
                count, size = count + 1, size + len(text)
        table.append(f"| {package} | {archive.split('_')[1]} | {licence} | {count} | {size} |")
        print(table[-1])
    shutil.rmtree(work)
    with open(os.path.join(a.out, "SOURCES.md"), "w") as f:
        f.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
