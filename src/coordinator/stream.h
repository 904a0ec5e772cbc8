#pragma once
// A non-blocking connection that carries frames, over TLS or plain. Not thread safe.
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/byte_socket.h"
#include "coordinator/frame.h"
#include "core/file_descriptor.h"

namespace tutti::coordinator {

class Stream {
 public:
  enum class State {
    open,
    closed,           ///< by the peer's kernel (FIN)
    reset,            ///< RST
    network_error,    ///< timed out, or no route
    unauthenticated,  ///< the peer does not know the secret
    damaged,          ///< the peer has sent bytes that are no frames
  };
  using OnFrame = std::function<void(const FrameHeader& header, std::string_view body)>;

  /// `tls`: null for a plain connection; must outlive the stream. While more than `max_unsent_bytes` wait for the peer,
  /// the stream takes no frames from it.
  Stream(FileDescriptor socket, const TlsContext* tls,
         std::size_t max_unsent_bytes = std::numeric_limits<std::size_t>::max())
      : socket_(std::move(socket), tls), max_unsent_bytes_(max_unsent_bytes) {}

  const FileDescriptor& socket() const { return socket_.descriptor(); }
  /// Until then no larger body is accepted than a hello.
  void accept_large_frames() { frames_.set_max_body(max_body_bytes); }

  /// Sends what can be sent now; the rest when pump() is called.
  void send(std::string_view frame);
  /// Sends, reads all that has come and calls on_frame. on_frame may throw DamagedFrame and may call send().
  State pump(const OnFrame& on_frame);
  State state() const { return state_; }
  /// Whether the last pump() has read bytes, or sent bytes that had waited: a sign that the peer's process runs.
  bool has_progressed() const { return has_progressed_; }
  /// Whether bytes wait until the socket is writable.
  bool wants_write() const { return socket_.has_unsent() || (socket_.is_authenticated() && !outgoing_.empty()); }
  /// The events of epoll after which to call pump().
  std::uint32_t events() const;

 private:
  bool is_congested() const { return state_ == State::open && outgoing_.size() - sent_ > max_unsent_bytes_; }
  void flush();
  void read();
  void fail(State state);
  void fail_read_or_write();

  ByteSocket socket_;
  std::size_t max_unsent_bytes_;
  State state_ = State::open;
  FrameBuffer frames_;
  std::string outgoing_;
  std::size_t sent_ = 0;  // of outgoing_
  bool was_reset_ = false;
  bool has_progressed_ = false;
};

/// What the coordinator did, if `state` is not open.
const char* describe_end(Stream::State state);

}  // namespace tutti::coordinator
