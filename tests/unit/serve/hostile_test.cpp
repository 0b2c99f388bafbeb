// What clients should not send, and what becomes of the others when they do.
#include <fstream>

#include "base/rng.h"
#include "rig.h"

namespace hysparse {
namespace {

using namespace tests;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

RigOptions small() {
  RigOptions o;
  o.server.http.max_body = 1 << 20;
  o.server.http.header_seconds = 0.6;
  o.server.http.body_seconds = 0.6;
  return o;
}

// BC-19, while another client streams.
TEST(ServeHostile, BadRequestsAreRefusedByName) {
  ServeRig rig(small());
  rig.model.script('s', {'t', 't'});
  rig.learn_alive();
  rig.model.delay_us = 300;
  const Json stream = {{"prompt", {int('s')}},
                       {"temperature", 0},
                       {"max_tokens", 3000},
                       {"stream", true},
                       {"ignore_eos", true}};
  Client other(rig.port());
  other.send(http_post("/v1/completions", stream.dump()));
  ASSERT_TRUE(other.until("data: "));

  const std::string ok = R"("prompt":[122],"max_tokens":1)";
  const std::vector<std::pair<std::string, std::string>> cases = {
      // body, what the error names
      {"{" + ok + R"(,"temperature":NaN})", "JSON"},
      {"{" + ok + R"(,"temperature":Infinity})", "JSON"},
      {"{" + ok + R"(,"temperature":1e999})", "JSON"},
      {"{" + ok + R"(,"temperature":-1})", "temperature"},
      {"{" + ok + R"(,"temperature":"hot"})", "temperature"},
      {"{" + ok + R"(,"top_p":0})", "top_p"},
      {"{" + ok + R"(,"top_p":2})", "top_p"},
      {"{" + ok + R"(,"top_p":NaN})", "JSON"},
      {"{" + ok + R"(,"min_p":-0.1})", "min_p"},
      {"{" + ok + R"(,"presence_penalty":3})", "presence_penalty"},
      {"{" + ok + R"(,"logit_bias":{"99999":1}})", "logit_bias"},
      {"{" + ok + R"(,"logit_bias":{"1":1000}})", "logit_bias"},
      {"{" + ok + R"(,"logit_bias":{"x":1}})", "logit_bias"},
      {"{" + ok + R"(,"n":0})", "n:"},
      {"{" + ok + R"(,"n":1000000})", "n:"},
      {"{" + ok + R"(,"stop":[""]})", "stop"},
      {"{" + ok + R"(,"stop":7})", "stop"},
      {"{" + ok + R"(,"logprobs":100})", "logprobs"},
      {"{" + ok + R"(,"best_of":3})", "best_of"},
      {"{" + ok + R"(,"suffix":"x"})", "suffix"},
      {"{" + ok + R"(,"stream_options":{"include_usage":true}})", "stream_options"},
      {"{" + ok + R"(,"response_format":{"type":"xml"}})", "response_format"},
      {"{" + ok + R"(,"response_format":{"type":"regex","pattern":"(a|b)*a(a|b){20}"}})", "complex"},
      {"{" + ok + R"(,"temprature":1})", "temperature"},
      {"{" + ok + R"(,"max_tokens":2})", "duplicate"},
      {R"({"prompt":[122],"max_tokens":-1})", "max_tokens"},
      {R"({"prompt":[122],"max_tokens":1e18})", "max_tokens"},
      {R"({"prompt":[122],"max_tokens":99999999999999999999})", "max_tokens"},
      {R"({"prompt":[]})", "prompt"},
      {R"({"prompt":[[]]})", "prompt"},
      {R"({"prompt":[-1]})", "prompt"},
      {R"({"prompt":[100000]})", "prompt"},
      {R"({"prompt":[1.5]})", "prompt"},
      {R"({"prompt":{"a":1}})", "prompt"},
      {R"({"max_tokens":1})", "prompt"},
      {R"({"prompt":"\ud800"})", "JSON"},
      {"{\"prompt\":\"\xff\xfe\"}", "JSON"},
      {std::string("{\"prompt\":\"a\0b\"}", 16), "JSON"},
      {"{" + ok + ",\"deep\":" + std::string(20000, '[') + std::string(20000, ']') + "}", "nested"},
      {"", "JSON"},
      {"[]", "object"},
      {"nonsense", "JSON"},
      {R"({"prompt":")" + std::string(5000, 'x') + R"("})", "4096"},
  };
  for (const auto& [body, named] : cases) {
    const auto start = Clock::now();
    const Reply r = post(rig.port(), "/v1/completions", body);
    EXPECT_EQ(r.status, 400) << body.substr(0, 200) << "\n" << r.body;
    EXPECT_NE(r.error().find(named), std::string::npos) << body.substr(0, 200) << "\n" << r.body;
    EXPECT_LT(since(start), 3) << body.substr(0, 200);  // a second on a machine of its own
  }
  for (const char* body : {R"({"messages":[]})", R"({"messages":"x"})", R"({"messages":[{"role":"user"}]})",
                           R"({"messages":[{"content":"x"}]})",
                           R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
                           R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]})",
                           R"({"messages":[{"role":"user","content":"x","extra":1}]})",
                           R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":3})"}) {
    const Reply r = post(rig.port(), "/v1/chat/completions", std::string(body));
    EXPECT_EQ(r.status, 400) << body << r.body;
    EXPECT_FALSE(r.error().empty()) << body;
  }
  EXPECT_EQ(post(rig.port(), "/v1/completions", "{" + ok + "}", "Content-Type: text/plain\r\n").status, 415);
  EXPECT_EQ(post(rig.port(), "/v1/completions", "{" + ok + "}", "").status, 415);

  const Reply whole = [&] {
    rig.model.delay_us = 0;
    return other.receive(60);
  }();
  EXPECT_TRUE(whole.complete && whole.ended_with_mark());
  EXPECT_EQ(gather(whole, false).text.at(0), std::string(3000, 't'));
  rig.expect_alive();
}

// What is no HTTP, or never ends.
TEST(ServeHostile, RawHttp) {
  ServeRig rig(small());
  rig.learn_alive();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
  const auto status = [&](const std::string& bytes, double seconds = 5) {
    Client c(rig.port());
    c.send(bytes);
    return c.receive(seconds).status;
  };
  EXPECT_EQ(status("GARBAGE\r\n\r\n"), 400);
  EXPECT_EQ(status(std::string("\0\0\0\0\r\n\r\n", 8)), 400);
  EXPECT_EQ(status("GET / HTTP/9.9\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nBad Header\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nX: " + std::string(100000, 'a') + "\r\n\r\n"), 431);
  EXPECT_EQ(status("GET /" + std::string(100000, 'a') + " HTTP/1.1\r\n\r\n"), 431);
  EXPECT_EQ(status(head + "Content-Length: 104857600\r\n\r\n"), 413);
  EXPECT_EQ(status(head + "Content-Length: -5\r\n\r\n"), 400);
  EXPECT_EQ(status(head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), 400);
  EXPECT_EQ(status(head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status(head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), 400);
  EXPECT_EQ(status(head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX\r\n\r\n"), 400);
  // 2 MiB in chunks slip past no limit: 413, or a connection that ends.
  {
    Client c(rig.port());
    c.send(head + "Transfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
    for (int i = 0; i < 32 && c.send(chunk); ++i) {
    }
    const int s = c.receive(5).status;
    EXPECT_TRUE(s == 413 || s == 0) << s;
  }
  // Silence: before anything, within the header, within the body.
  for (const std::string& part :
       {std::string(), std::string("GET / HTTP/1.1\r\nHo"), head + "Content-Length: 100\r\n\r\n{"}) {
    Client c(rig.port());
    c.send(part);
    const auto start = Clock::now();
    const int s = c.receive(8).status;
    EXPECT_TRUE(s == 0 || s == 408) << s;
    EXPECT_LT(since(start), 5);
    EXPECT_FALSE(c.more(5));  // and it was closed
  }
  // Slow loris: a byte now and then does not keep a header open.
  {
    Client c(rig.port());
    const auto start = Clock::now();
    while (since(start) < 5 && c.send("G") && !c.more(0.1)) {
    }
    EXPECT_LT(since(start), 4);
  }
  // Two requests in one packet, a HEAD, HTTP/1.0, and one that waits for leave to send.
  {
    Client c(rig.port());
    c.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(c.receive().status, 200);
    EXPECT_NE(c.receive().body.find("script"), std::string::npos);
    c.send(http_post("/v1/completions", R"({"prompt":[122],"max_tokens":3})"));
    EXPECT_EQ(c.receive().status, 200);
  }
  {
    Client c(rig.port());
    c.send("GET /health HTTP/1.0\r\n\r\n");
    EXPECT_EQ(c.receive().status, 200);
    EXPECT_FALSE(c.more(3));
  }
  {
    Client c(rig.port());
    const std::string body = R"({"prompt":[122],"max_tokens":3})";
    c.send(head + "Expect: 100-continue\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n");
    EXPECT_TRUE(c.until("100 Continue", 5));
    c.send(body);
    EXPECT_EQ(c.receive().status, 200);
  }
  rig.expect_alive();
}

// BC-21. Clients that vanish, in every phase and manner, leave nothing behind.
TEST(ServeHostile, DisconnectsFreeTheirPlaces) {
  ServeRig rig(small());
  rig.model.script('s', {'t', 't'});
  rig.learn_alive();
  rig.model.delay_us = 500;
  ASSERT_TRUE(rig.quiet());
  const int64_t pages = rig.engine().stats().pages_used - rig.engine().stats().pages_cached;
  const std::string prompt(2000, 's');
  for (int i = 0; i < 50; ++i) {
    Json body = {{"prompt", prompt},   {"temperature", 0},     {"max_tokens", 1500},
                 {"ignore_eos", true}, {"stream", i % 4 != 3}, {"n", 1 + i % 2}};
    Client c(rig.port());
    c.send(http_post("/v1/completions", body.dump()));
    if (i % 4 == 1) c.until("data: ");
    if (i % 4 == 2) c.until("ttt");
    if (i % 4 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    i % 3 == 0 ? c.reset() : c.close();
  }
  rig.model.delay_us = 0;
  EXPECT_TRUE(rig.quiet(15));
  EXPECT_EQ(rig.engine().stats().pages_used - rig.engine().stats().pages_cached, pages);
  rig.engine().stats();
  for (int i = 0; i < 4; ++i) rig.expect_alive();
}

// A client that reads nothing while megabytes wait for it: bounded memory here, and the others go on.
TEST(ServeHostile, SlowReadersHoldUpNobody) {
  ServeRig rig(small());
  rig.model.script('s', {'t', 't'});
  rig.learn_alive();
  const Json body = {{"prompt", {int('s')}}, {"temperature", 0}, {"max_tokens", 300}, {"ignore_eos", true},
                     {"stream", true},       {"n", 3},           {"logprobs", 20}};
  Client slow(rig.port());
  const int tiny = 4096;
  setsockopt(slow.fd(), SOL_SOCKET, SO_RCVBUF, &tiny, sizeof tiny);
  slow.send(http_post("/v1/completions", body.dump()));
  ASSERT_TRUE(slow.until("data: "));
  for (int i = 0; i < 5; ++i) rig.expect_alive();
  // All of it is there once it does read.
  const int wide = 1 << 20;
  setsockopt(slow.fd(), SOL_SOCKET, SO_RCVBUF, &wide, sizeof wide);
  const Reply r = slow.receive(60);
  EXPECT_TRUE(r.complete && r.ended_with_mark());
  for (const auto& [i, text] : gather(r, false).text) EXPECT_EQ(text, std::string(300, 't'));
}

TEST(ServeHostile, OverloadIsAnsweredAtOnce) {
  RigOptions o = small();
  o.server.max_queued = 2;
  o.sequences = 2;
  ServeRig rig(o);
  rig.model.script('s', {'t', 't'});
  rig.learn_alive();
  rig.model.delay_us = 2000;
  const Json body = {{"prompt", {int('s')}}, {"temperature", 0}, {"max_tokens", 400}, {"ignore_eos", true}};
  std::vector<std::unique_ptr<Client>> busy;
  for (int i = 0; i < 4; ++i) {
    busy.push_back(std::make_unique<Client>(rig.port()));
    busy.back()->send(http_post("/v1/completions", body.dump()));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::vector<double> times;
  for (int i = 0; i < 20; ++i) {
    Client c(rig.port());
    const auto start = Clock::now();
    c.send(http_post("/v1/completions", body.dump()));
    const Reply r = c.receive();
    times.push_back(since(start));
    EXPECT_EQ(r.status, 429);
    EXPECT_NE(r.head.find("Retry-After: "), std::string::npos);
    EXPECT_FALSE(r.error().empty());
  }
  std::sort(times.begin(), times.end());
  EXPECT_LT(times[10], 0.05);
  rig.model.delay_us = 0;
  for (auto& c : busy) EXPECT_EQ(c->receive(30).status, 200);  // those that were admitted are served
  rig.expect_alive();
  EXPECT_EQ(rig.complete({{"prompt", {int('z')}}, {"n", 5}}).status, 400);  // never possible: said so
}

TEST(ServeHostile, HealthSaysWhenTheEngineHangs) {
  RigOptions o = small();
  o.server.stall_seconds = 0.8;
  ServeRig rig(o);
  rig.learn_alive();
  EXPECT_EQ(get(rig.port(), "/health").status, 200);
  rig.model.hang = true;
  Client c(rig.port());
  c.send(http_post("/v1/completions", R"({"prompt":[122],"max_tokens":3})"));
  const auto start = Clock::now();
  int status = 200;
  while (status == 200 && since(start) < 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = get(rig.port(), "/health").status;  // answers at once although the engine does not
  }
  EXPECT_EQ(status, 503);
  EXPECT_EQ(get(rig.port(), "/metrics").status, 200);
  rig.model.hang = false;
  EXPECT_EQ(c.receive().status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(get(rig.port(), "/health").status, 200);
}

TEST(ServeHostile, KeysAndRates) {
  test::TempDir dir;
  test::write(dir / "keys", "# ours\nfirst-key-0123456789\n\nsecond-key-9876543210\r\n");
  RigOptions o = small();
  o.server.keys = ApiKeys::read((dir / "keys").string());
  o.server.rate_limit = 12;  // two at once
  ServeRig rig(o);
  const std::string body = R"({"prompt":[122],"max_tokens":1})", type = "Content-Type: application/json\r\n";
  const auto status = [&](const std::string& key) {
    return post(rig.port(), "/v1/completions", body,
                type + (key.empty() ? "" : "Authorization: " + key + "\r\n"))
        .status;
  };
  for (const char* key :
       {"", "Bearer", "Bearer ", "Bearer first-key-012345678", "Bearer first-key-01234567890",
        "first-key-0123456789", "Bearer # ours", "Basic first-key-0123456789"})
    EXPECT_EQ(status(key), 401) << key;
  EXPECT_EQ(get(rig.port(), "/v1/models").status, 401);
  EXPECT_EQ(get(rig.port(), "/stats").status, 401);
  EXPECT_EQ(get(rig.port(), "/health").status, 200);
  EXPECT_EQ(status("Bearer first-key-0123456789"), 200);
  EXPECT_EQ(status("Bearer first-key-0123456789"), 200);
  EXPECT_EQ(status("Bearer first-key-0123456789"), 429);
  EXPECT_EQ(status("Bearer second-key-9876543210"), 200);  // a rate of its own
  test::write(dir / "short", "tooshort\n");
  EXPECT_THROW(ApiKeys::read((dir / "short").string()), Error);
  test::write(dir / "none", "# nothing\n");
  EXPECT_THROW(ApiKeys::read((dir / "none").string()), Error);
}

TEST(ServeHostile, DrainsThenEnds) {
  ServeRig rig(small());
  rig.model.script('s', {'t', 't'});
  rig.model.delay_us = 1000;
  Client c(rig.port());
  c.send(http_post(
      "/v1/completions",
      Json{{"prompt", {int('s')}}, {"temperature", 0}, {"max_tokens", 200}, {"stream", true}}.dump()));
  ASSERT_TRUE(c.until("data: "));
  const int port = rig.port();
  EXPECT_TRUE(rig.server().drain(20));
  const Reply r = c.receive();
  EXPECT_TRUE(r.complete && r.ended_with_mark());  // what ran was finished
  EXPECT_EQ(get(port, "/health").status, 0);       // nobody new
}

TEST(ServeHostile, DrainCutsWhatTakesTooLong) {
  ServeRig rig(small());
  rig.model.script('s', {'t', 't'});
  rig.model.delay_us = 3000;
  Client c(rig.port());
  c.send(http_post(
      "/v1/completions",
      Json{{"prompt", {int('s')}}, {"temperature", 0}, {"max_tokens", 4000}, {"stream", true}}.dump()));
  ASSERT_TRUE(c.until("data: "));
  EXPECT_FALSE(rig.server().drain(0.1));
  const Reply r = c.receive();
  EXPECT_FALSE(r.ended_with_mark());
  EXPECT_NE(r.body.find("stopping"), std::string::npos);
}

// Mutations of good requests: a 4xx, a 200, or a closed connection; never a 5xx, never silence, and ALIVE
// after.
void fuzz(int rounds, uint64_t seed) {
  RigOptions o = small();
  o.server.rate_limit = 0;
  ServeRig rig(o);
  rig.learn_alive();
  const std::vector<std::string> bodies = {
      R"({"model":"script","prompt":"hello","max_tokens":2,"temperature":0.5,"top_p":0.9,"n":2,"stop":["x","yy"],"logprobs":2,"echo":true,"seed":1})",
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}})",
      R"({"prompt":[[97,98],[99]],"max_tokens":1,"logit_bias":{"97":5},"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"integer"}}}})"};
  static const std::vector<std::string> splices = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   ":",
                                                   ",",
                                                   "null",
                                                   "true",
                                                   "1e999",
                                                   "-1",
                                                   "99999999999999999999",
                                                   "NaN",
                                                   "\\ud800",
                                                   "\xff",
                                                   "\xed\xa0\x80",
                                                   "\r\n",
                                                   "\r\n\r\n",
                                                   std::string(1, '\0'),
                                                   "Transfer-Encoding: chunked\r\n",
                                                   "Content-Length: 3\r\n",
                                                   "[[[[[[[[[[",
                                                   "0\r\n\r\n",
                                                   "\"prompt\":",
                                                   "HTTP/1.1",
                                                   "\\u0000",
                                                   "{\"a\":{\"a\":"};
  for (int round = 0; round < rounds; ++round) {
    Rng rng(seed, uint64_t(round));
    const size_t which = rng.below(bodies.size());
    const std::string path = which == 1 ? "/v1/chat/completions" : "/v1/completions";
    std::string body = bodies[which];
    const auto mutate = [&](std::string& s) {
      for (uint64_t i = 0, n = 1 + rng.below(4); i < n; ++i) {
        const size_t at = rng.below(s.size() + 1);
        switch (rng.below(5)) {
          case 0:
            s.insert(at, splices[rng.below(splices.size())]);
            break;
          case 1:
            s.erase(at, 1 + rng.below(8));
            break;
          case 2:
            if (at < s.size()) s[at] = char(rng.below(256));
            break;
          case 3:
            s.insert(at, s.substr(rng.below(s.size() + 1), rng.below(30)));
            break;
          default:
            s.resize(at);
        }
      }
    };
    const bool raw = round % 3 == 2;
    if (!raw) mutate(body);
    std::string bytes = http_post(path, body);
    if (raw) mutate(bytes);
    Client c(rig.port());
    c.send(bytes);
    if (raw) shutdown(c.fd(), SHUT_WR);  // whatever it waits for does not come
    const Reply r = c.receive(10);
    ASSERT_TRUE(r.status == 0 ? raw : r.status < 500) << "round " << round << " status " << r.status << "\n"
                                                      << bytes << "\n"
                                                      << r.body;
    if (r.status >= 400) {
      EXPECT_FALSE(r.error().empty()) << bytes << r.body;
    }
    if (round % 50 == 49) rig.expect_alive();
  }
  EXPECT_TRUE(rig.quiet());
  rig.expect_alive();
}
TEST(ServeHostile, MutatedRequests) {
  fuzz(400, 1);
}
TEST(FullServeHostile, MutatedRequests) {
  fuzz(10000, 2);
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Many clients, a quarter of which leave at random: whoever stays gets what he gets alone, memory stays flat.
void storm(double seconds, int clients) {
  RigOptions o = small();
  o.server.max_queued = 200;
  o.sequences = 8;
  ServeRig rig(o);
  rig.learn_alive();
  rig.model.delay_us = 100;
  std::vector<std::string> solo;
  const auto body = [](int i) {
    return Json{{"prompt", {97 + i % 26}},
                {"max_tokens", 40},
                {"seed", i % 16},
                {"temperature", 1},
                {"stream", true}};
  };
  for (int i = 0; i < 16 * 26; ++i)
    solo.push_back(i < 64 ? gather(rig.complete(body(i)), false).text[0] : "");
  std::atomic<int> served{0}, wrong{0}, left{0};
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < clients; ++t)
    threads.emplace_back([&, t] {
      Rng rng(7, uint64_t(t));
      while (since(start) < seconds) {
        const int i = int(rng.below(64));
        Client c(rig.port());
        c.send(http_post("/v1/completions", body(i).dump()));
        if (rng.below(4) == 0) {
          if (rng.below(2) == 0) c.until("data: ", 30);
          rng.below(2) == 0 ? c.close() : c.reset();
          ++left;
          continue;
        }
        const Reply r = c.receive(60);
        if (r.status != 200 || !r.ended_with_mark() || gather(r, false).text[0] != solo[size_t(i)]) ++wrong;
        ++served;
      }
    });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 3));
  const int64_t before = resident_bytes();
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0) << "of " << served;
  EXPECT_GT(served, clients);
  EXPECT_GT(left, 0);
  EXPECT_LT(resident_bytes() - before, int64_t(48) << 20);
  EXPECT_TRUE(rig.quiet());
  rig.expect_alive();
}
TEST(ServeHostile, DisconnectStorm) {
  storm(4, 16);
}
TEST(FullServeHostile, DisconnectStorm) {
  storm(300, 64);
}

}  // namespace
}  // namespace hysparse
