#include "serve/http.h"

#include <arpa/inet.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "serve/http_text.h"

namespace hysparse {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using Failure = boost::system::error_code;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kPipelined = 64 << 10;    // bytes of later requests that are kept while one is answered
constexpr double kLingerSeconds = 2;       // for the client to read a refusal before the connection is cut
constexpr size_t kLingerBytes = 32 << 20;  // of what it still sends meanwhile

}  // namespace

class HttpConnection;

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(const HttpOptions& o, Handler h, Log l)
      : options(o), handler(std::move(h)), log(std::move(l)), acceptor(io), retry(io) {}

  void listen();
  void accept();

  HttpOptions options;
  Handler handler;
  Log log;
  asio::io_context io{1};
  std::optional<ssl::context> tls;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::set<HttpConnection*> open;
  std::set<std::shared_ptr<asio::steady_timer>> timers;
  std::atomic<int64_t> count{0};
  bool closing = false;
  int port = 0;
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::thread thread;
};

// What does not depend on the kind of stream.
class HttpConnection : public HttpExchange, public std::enable_shared_from_this<HttpConnection> {
 public:
  explicit HttpConnection(std::shared_ptr<HttpServer::Impl> server)
      : server_(std::move(server)), timer_(server_->io) {
    server_->open.insert(this);
    ++server_->count;
  }
  ~HttpConnection() override {
    server_->open.erase(this);
    --server_->count;
  }

  virtual void start() = 0;
  virtual void cut() = 0;
  void close_if_idle() {
    last_ = true;
    if (!busy_ && !reading_body_) cut();
  }

 protected:
  std::shared_ptr<HttpServer::Impl> server_;
  asio::steady_timer timer_;
  bool busy_ = false;          // a request is being answered
  bool reading_body_ = false;  // or is on its way
  bool last_ = false;          // the connection ends behind this answer
};

namespace {

template <class Stream>
class Connection final : public HttpConnection {
 public:
  template <class... Args>
  Connection(std::shared_ptr<HttpServer::Impl> server, std::string peer, Args&&... args)
      : HttpConnection(std::move(server)), stream_(std::forward<Args>(args)...), peer_(std::move(peer)) {}

  void start() override {
    if constexpr (kTls) {
      arm(options().header_seconds);
      stream_.async_handshake(ssl::stream_base::server, [self = self()](Failure e) {
        if (e) return self->cut();
        self->read_request(self->options().header_seconds);
      });
    } else {
      read_request(options().header_seconds);
    }
  }

  void cut() override {
    if (cut_) return;
    cut_ = true;
    Failure ignored;
    timer_.cancel(ignored);
    stream_.lowest_layer().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.lowest_layer().close(ignored);
    queue_.clear();
    queued_ = 0;
    leave();
  }

  // ---- the answer
  void respond(int status, std::string_view content_type, std::string body,
               const HttpFields& fields) override {
    if (cut_ || answered_) return;
    answered_ = true;
    std::string head = http_head(status, content_type, fields, static_cast<int64_t>(body.size()), last_);
    if (request.method == "HEAD") body.clear();
    put(head += body);
    complete_ = true;
  }
  void begin(int status, std::string_view content_type, const HttpFields& fields) override {
    if (cut_ || answered_) return;
    answered_ = true;
    chunked_ = version_ >= 11;
    if (!chunked_) last_ = true;
    put(http_head(status, content_type, fields, chunked_ ? -1 : -2, last_));
  }
  void write(std::string piece) override {
    if (cut_ || complete_ || piece.empty()) return;
    put(chunked_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::move(piece));
  }
  void end() override {
    if (cut_ || complete_) return;
    complete_ = true;
    if (chunked_)
      put("0\r\n\r\n");
    else
      pump();
  }
  void abort() override { cut(); }
  size_t backlog() const override { return queued_; }
  bool closed() const override { return cut_; }

 private:
  static constexpr bool kTls = !std::is_same_v<Stream, tcp::socket>;
  const HttpOptions& options() const { return server_->options; }
  std::shared_ptr<Connection> self() { return std::static_pointer_cast<Connection>(shared_from_this()); }

  // Unless something happens within `seconds`.
  void arm(double seconds) {
    timer_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    timer_.async_wait([weak = std::weak_ptr<HttpConnection>(shared_from_this())](Failure e) {
      const auto connection = weak.lock();
      if (!e && connection) std::static_pointer_cast<Connection>(connection)->late();
    });
  }
  void late() {
    if (timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    if (!busy_ && reading_body_) return refuse(408, "the request did not arrive in time");
    cut();
  }

  // ---- the request
  void read_request(double seconds) {
    busy_ = reading_body_ = answered_ = complete_ = chunked_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(options().max_header));
    parser_->body_limit(static_cast<uint64_t>(options().max_body));
    arm(seconds);
    http::async_read_header(stream_, buffer_, *parser_, [self = self()](Failure e, size_t) {
      if (self->cut_ || self->lingering_) return;
      if (e) return self->refuse_read(e);
      self->on_header();
    });
  }

  void on_header() {
    reading_body_ = true;
    const auto& head = parser_->get();
    version_ = head.version();
    last_ = last_ || !head.keep_alive() || server_->closing;
    if (head.count(http::field::content_length) > 1 ||
        (head.count(http::field::content_length) > 0 && head.count(http::field::transfer_encoding) > 0))
      return refuse(400, "two lengths of one body");
    if (const auto length = parser_->content_length();
        length && *length > static_cast<uint64_t>(options().max_body))
      return refuse(413, fmt::format("the body is larger than {} bytes", options().max_body));
    arm(options().body_seconds);
    if (boost::beast::iequals(head[http::field::expect], "100-continue")) {
      put("HTTP/1.1 100 Continue\r\n\r\n");
    }
    http::async_read(stream_, buffer_, *parser_, [self = self()](Failure e, size_t) {
      if (self->cut_ || self->lingering_) return;
      if (e) return self->refuse_read(e);
      self->on_request();
    });
  }

  void on_request() {
    Failure ignored;
    timer_.cancel(ignored);
    reading_body_ = false;
    busy_ = true;
    auto message = parser_->release();
    request = {};
    request.method = std::string(message.method_string());
    const std::string_view target(message.target().data(), message.target().size());
    const size_t mark = std::min(target.find('?'), target.size());
    request.path = target.substr(0, mark);
    request.query = target.substr(std::min(mark + 1, target.size()));
    const auto field = [&](http::field f) {
      const auto v = message[f];
      return std::string(v.data(), v.size());
    };
    request.authorization = field(http::field::authorization);
    request.content_type = field(http::field::content_type);
    request.body = std::move(message.body());
    request.peer = peer_;
    gone = drained = nullptr;
    watch();
    server_->handler(shared_from_this());
  }

  // While the answer is made nothing is expected of the client: what it sends belongs to later requests, and
  // an end means that it has left.
  void watch() {
    if (watching_ || buffer_.size() >= kPipelined) return;
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(4096), [self = self()](Failure e, size_t n) {
      self->watching_ = false;
      if (self->cut_) return;
      if (e && !self->restarting_) return self->cut();
      self->restarting_ = false;
      self->buffer_.commit(n);
      if (self->busy_)
        self->watch();
      else
        self->read_request(self->options().header_seconds);
    });
  }

  void leave() {
    const auto call = std::exchange(gone, nullptr);
    drained = nullptr;
    if (call) call();
  }

  // ---- refusals: said, then the connection ends, but not before the client could read it
  void refuse_read(Failure e) {
    if (e == http::error::body_limit)
      return refuse(413, fmt::format("the body is larger than {} bytes", options().max_body));
    if (e == http::error::header_limit)
      return refuse(431, fmt::format("the header is larger than {} bytes", options().max_header));
    if (e == http::error::end_of_stream ||
        e.category() != http::make_error_code(http::error::bad_method).category())
      return cut();
    refuse(400, "not a valid HTTP request: " + e.message());
  }
  void refuse(int status, const std::string& what) {
    last_ = lingering_ = true;
    busy_ = true;
    reading_body_ = false;
    gone = drained = nullptr;
    if (version_ == 0) version_ = 11;
    respond(status, "application/json", http_error_body(status, what), {});
  }
  void linger() {
    Failure ignored;
    arm(kLingerSeconds);
    if constexpr (kTls) return cut();
    stream_.lowest_layer().shutdown(tcp::socket::shutdown_send, ignored);
    sink_.resize(16 << 10);
    discard();
  }
  void discard() {
    stream_.async_read_some(asio::buffer(sink_), [self = self()](Failure e, size_t n) {
      self->discarded_ += n;
      if (e || self->cut_ || self->discarded_ > kLingerBytes) return self->cut();
      self->discard();
    });
  }

  // ---- writing
  void put(std::string bytes) {
    queued_ += bytes.size();
    queue_.push_back(std::move(bytes));
    pump();
  }
  void pump() {
    if (writing_ || cut_) return;
    if (queue_.empty()) {
      if (complete_ && busy_) return finished();
      if (busy_ && drained) {
        const auto call = drained;  // it may put more, or end
        call();
      }
      return;
    }
    writing_ = true;
    out_.clear();
    while (!queue_.empty() && out_.size() < (64 << 10)) {
      out_ += queue_.front();
      queue_.pop_front();
    }
    sent_ = 0;
    write_some();
  }
  // Piece by piece: a client that takes a little now and then is slow, one that takes nothing is gone.
  void write_some() {
    arm(options().write_seconds);
    stream_.async_write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_),
                             [self = self()](Failure e, size_t n) {
                               if (self->cut_) return;
                               if (e) return self->cut();
                               self->sent_ += n;
                               self->queued_ -= n;
                               if (self->sent_ < self->out_.size()) return self->write_some();
                               self->writing_ = false;
                               Failure ignored;
                               if (self->busy_) self->timer_.cancel(ignored);
                               self->pump();
                             });
  }
  void finished() {
    gone = drained = nullptr;
    if (lingering_) return linger();
    if (last_ || server_->closing) return shut();
    busy_ = false;
    if (buffer_.size() > 0) {  // the next request, or part of it: the watch must not wait for more
      if (!watching_) return read_request(options().header_seconds);
      Failure ignored;
      restarting_ = true;
      stream_.lowest_layer().cancel(ignored);
      return;
    }
    arm(options().idle_seconds);
    watch();
  }
  void shut() {
    if constexpr (kTls) {
      arm(kLingerSeconds);
      stream_.async_shutdown([self = self()](Failure) { self->cut(); });
    } else {
      cut_gracefully();
    }
  }
  void cut_gracefully() {
    Failure ignored;
    stream_.lowest_layer().shutdown(tcp::socket::shutdown_send, ignored);
    busy_ = false;
    arm(kLingerSeconds);
    if (!watching_) {
      sink_.resize(4096);
      discard();
    } else {
      lingering_ = true;
    }
  }

  Stream stream_;
  std::string peer_;
  boost::beast::flat_buffer buffer_{size_t(1) << 30};
  std::optional<Parser> parser_;
  unsigned version_ = 0;
  std::deque<std::string> queue_;
  std::string out_;
  size_t queued_ = 0, sent_ = 0, discarded_ = 0;
  std::string sink_;
  bool writing_ = false, watching_ = false, cut_ = false;
  bool answered_ = false, complete_ = false, chunked_ = false, lingering_ = false, restarting_ = false;
};

}  // namespace

void HttpServer::Impl::listen() {
  Failure e;
  const asio::ip::address address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, e);
  if (e) throw expected_error("--host", "an IP address or localhost", options.host);
  if (options.tls_certificate.empty() != options.tls_key.empty())
    throw input_error("--tls-cert", "a certificate and its key come together",
                      "give --tls-cert and --tls-key");
  if (!options.tls_certificate.empty()) {
    tls.emplace(ssl::context::tls_server);
    tls->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                     ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
    tls->use_certificate_chain_file(options.tls_certificate, e);
    if (e) throw input_error(options.tls_certificate, "no PEM certificate can be read: " + e.message());
    tls->use_private_key_file(options.tls_key, ssl::context::pem, e);
    if (e) throw input_error(options.tls_key, "no PEM key of the certificate can be read: " + e.message());
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.bind(endpoint, e);
  if (e) throw failure(fmt::format("{}:{}", options.host, options.port), "could not listen: " + e.message());
  acceptor.listen(asio::socket_base::max_listen_connections, e);
  if (e) throw failure(fmt::format("{}:{}", options.host, options.port), "could not listen: " + e.message());
  port = acceptor.local_endpoint().port();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([self = shared_from_this()](Failure e, tcp::socket socket) {
    if (e == asio::error::operation_aborted || self->closing) return;
    if (e) {  // no file descriptors left, say: others may become free
      self->retry.expires_after(std::chrono::milliseconds(50));
      self->retry.async_wait([self](Failure f) {
        if (!f) self->accept();
      });
      return;
    }
    if (self->count < self->options.max_connections) {
      Failure ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      const auto remote = socket.remote_endpoint(ignored);
      std::string peer = ignored ? "?" : remote.address().to_string();
      std::shared_ptr<HttpConnection> c;
      if (self->tls)
        c = std::make_shared<Connection<ssl::stream<tcp::socket>>>(self, std::move(peer), std::move(socket),
                                                                   *self->tls);
      else
        c = std::make_shared<Connection<tcp::socket>>(self, std::move(peer), std::move(socket));
      c->start();
    }
    self->accept();
  });
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler, Log log)
    : impl_(std::make_shared<Impl>(options, std::move(handler), std::move(log))) {
  impl_->listen();
  impl_->accept();
  impl_->thread = std::thread([impl = impl_.get()] {
    while (true) {
      try {
        impl->io.run();
        return;
      } catch (const std::exception& e) {  // of one handler; the others go on
        hysparse::log(impl->log, LogLevel::warning, std::string("http: ") + e.what());
      }
    }
  });
}

HttpServer::~HttpServer() {
  post([impl = impl_] {
    impl->closing = true;
    Failure ignored;
    impl->acceptor.close(ignored);
    impl->retry.cancel(ignored);
    for (const auto& t : impl->timers) t->cancel(ignored);
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (HttpConnection* c : impl->open) all.push_back(c->shared_from_this());
    for (const auto& c : all) c->cut();
    impl->work.reset();
  });
  impl_->thread.join();
}

int HttpServer::port() const {
  return impl_->port;
}

void HttpServer::post(std::function<void()> job) {
  asio::post(impl_->io, std::move(job));
}

void HttpServer::after(double seconds, std::function<void()> job) {
  post([impl = impl_, seconds, job = std::move(job)]() mutable {
    auto timer = std::make_shared<asio::steady_timer>(
        impl->io, std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    impl->timers.insert(timer);
    timer->async_wait([timer, job = std::move(job), impl = impl.get()](Failure e) {
      impl->timers.erase(timer);
      if (!e) job();
    });
  });
}

void HttpServer::close_gently() {
  post([impl = impl_] {
    if (impl->closing) return;
    impl->closing = true;
    Failure ignored;
    impl->acceptor.close(ignored);
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (HttpConnection* c : impl->open) all.push_back(c->shared_from_this());
    for (const auto& c : all) c->close_if_idle();
  });
}

int64_t HttpServer::connections() const {
  return impl_->count;
}

}  // namespace hysparse
