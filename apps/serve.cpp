// hysparse serve: the OpenAI-compatible server.
#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/error.h"
#include "commands.h"
#include "common.h"
#include "engine/engine_thread.h"
#include "engine_flags.h"
#include "serve/server.h"
#include "shipped.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model, name, chat_template, key_file;
  ServerOptions server;
  EngineFlags engine;
  bool anonymous = false, no_page = false, quiet = false;
  double drain_seconds = 30;
  std::string weights = "dtype";
  DeviceFlags device;
};

bool loopback(const std::string& host) {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

void check(const Flags& f) {
  if (!loopback(f.server.http.host) && f.key_file.empty() && !f.anonymous)
    throw input_error("--host", f.server.http.host + " can be reached by others, and no API key is asked for",
                      "give --api-key-file, or --allow-anonymous where that is meant");
}

std::string model_name(const Flags& f) {
  if (!f.name.empty()) return f.name;
  const auto path = std::filesystem::absolute(f.model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

void run(Flags f) {
  if (f.model.empty()) f.model = shipped_model();
  check(f);
  ServerOptions options = f.server;
  options.page = !f.no_page;
  if (!f.key_file.empty()) options.keys = ApiKeys::read(f.key_file);
  CommandMachine machine(f.device);
  TextModel m =
      load_text_model(f.model, {.compute = machine.compute(), .format = weight_format_of(f.weights)},
                      machine.runtime().memory, warnings_only(machine.runtime().log));
  m.loaded.weights->pack(machine.runtime());
  const EngineOptions engine_settings = engine_options(f.engine, m);
  ServedModel served = describe_model(m, model_name(f), f.chat_template, 0);
  ModelStep step(m.model());
  Engine engine(machine.runtime(), step, engine_settings);
  served.context = engine.context();
  const std::atomic<bool>& stop = interrupt_flag();
  EngineThread thread(engine);
  const Log log = stderr_log();
  Server server(
      options, std::move(served), engine, [&thread] { return thread.failure(); },
      f.quiet ? warnings_only(log) : log);
  std::fprintf(stderr, "%s\n", engine.memory_plan().table().c_str());
  std::fprintf(stderr, "serving %s at %s://%s:%d (context %lld)\n", model_name(f).c_str(),
               options.http.tls_certificate.empty() ? "http" : "https", options.http.host.c_str(),
               server.port(), static_cast<long long>(engine.context()));
  while (!stop.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (const std::string why = thread.failure(); !why.empty()) throw failure("engine", why);
  }
  std::fprintf(stderr, "stopping: running requests have %.0f seconds\n", f.drain_seconds);
  if (!server.drain(f.drain_seconds)) std::fprintf(stderr, "warning: some requests were cut off\n");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  HttpOptions& h = f.server.http;
  CLI::App& c = *app.add_subcommand("serve", "answer OpenAI-compatible requests over HTTP; a chat page at /");
  add_model_flag(c, f.model);
  c.add_option("--name", f.name, "what clients call the model; default: the directory's name");
  c.add_option("--host", h.host, "address to listen at; others than loopback need keys")
      ->capture_default_str();
  c.add_option("--port", h.port, "0: one that is free")->check(CLI::Range(0, 65535))->capture_default_str();
  c.add_option("--api-key-file", f.key_file, "keys of which requests must show one, one a line");
  c.add_flag("--allow-anonymous", f.anonymous, "no keys although others can reach the address");
  c.add_option("--tls-cert", h.tls_certificate, "PEM file with the certificate chain: serve HTTPS");
  c.add_option("--tls-key", h.tls_key, "PEM file with its key");
  c.add_option("--chat-template", f.chat_template,
               "plain, chatml or a file; default: the model directory's own");
  add_engine_flags(c, f.engine);
  c.add_option("--max-queued", f.server.max_queued, "answers that may wait beside them; more get 429")
      ->check(CLI::Range(int64_t(0), int64_t(100000)))
      ->capture_default_str();
  c.add_option("--rate-limit", f.server.rate_limit,
               "requests a minute for each key (or address); 0: no limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c.add_option("--max-body", h.max_body, "bytes of a request's body (16MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  c.add_option("--max-connections", h.max_connections, "open connections")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.add_option("--stall-seconds", f.server.stall_seconds,
               "/health fails when the engine moves nothing for so long")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.add_option("--drain-seconds", f.drain_seconds, "what running requests get after SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c.add_flag("--no-page", f.no_page, "no chat page at /");
  c.add_flag("--quiet", f.quiet, "no line for each request");
  add_device_flags(c, f.device);
  add_weights_flag(c, f.weights);
  c.footer(
      "Example: hysparse serve --model out/demo/model --chat-template plain\nThen: curl "
      "http://127.0.0.1:8080/v1/models");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
