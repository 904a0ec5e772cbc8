#pragma once
// A connection between two ranks: how it is made (docs/wire_format.md, "Connecting"), and how its bytes are read.
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/tcp/connection_security.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/matcher.h"
#include "coordinator/byte_socket.h"
#include "core/socket.h"

namespace tutti::comm {

/// The address at which a rank accepts connections, as it is published.
struct EndpointAddress {
  SocketAddress socket;
  Nonce nonce{};  ///< a client that does not send it is refused

  std::string to_text() const;
  /// nullopt for a text that is none.
  static std::optional<EndpointAddress> from_text(const std::string& text);
};

/// Used by one thread at a time; once it is open, by one that reads and one that writes. `security` must outlive the
/// greeting.
class Connection {
 public:
  /// Starts to connect to `rank`. Throws std::system_error.
  Connection(const EndpointAddress& address, int own_rank, int rank, const ConnectionSecurity& security);
  /// Takes over an accepted socket.
  Connection(FileDescriptor socket, const ConnectionSecurity& security, Deadline since);

  int descriptor() const { return socket().get(); }
  /// In the job; -1 until it is known.
  int rank() const { return rank_; }
  void set_rank(int rank) { rank_ = rank; }
  /// When it was accepted.
  Deadline since() const { return since_; }

  enum class Greeting {
    pending,
    hello,              ///< of the acceptor: hello() has come and waits for answer()
    open,               ///< frames may be sent and read
    duplicate,          ///< the peer uses its own connection to this rank
    not_authenticated,  ///< the peer does not know the job's secret
  };
  /// Takes the greeting as far as it goes now. Throws std::system_error when the connection has ended.
  Greeting greet();
  const Hello& hello() const { return hello_; }
  /// Throws std::system_error.
  void answer(Verdict verdict);
  const FileDescriptor& socket() const { return socket_.descriptor(); }
  /// After Read::closed: why, as errno; 0 if the peer has closed the connection.
  int error() const { return error_; }
  /// Nothing more is sent.
  void finish_sending() const;
  bool is_open() const { return step_ == Step::open; }
  /// The acceptor has not answered, and nothing is sent yet.
  bool is_connecting() const { return step_ == Step::connecting; }

  /// Writes without waiting, like sendmsg(): the number of bytes that were taken, or -1 with errno. Call when it is
  /// open.
  ssize_t write(std::span<const iovec> parts) { return socket_.write(parts); }
  /// Whether bytes that write() has taken wait until the socket is writable. For the thread that writes.
  bool has_unsent() const { return socket_.has_unsent(); }

  enum class Read { progress, drained, closed };
  /// Moves bytes to the body and to the buffer of the bytes behind it. Call when it is open. Without memory the
  /// connection ends.
  Read read() noexcept;
  /// The next header, once it is complete and the body before it is.
  std::optional<FrameHeader> next_header();
  Body body;
  /// The header of a message that cannot be accepted yet: nothing more is read.
  std::optional<FrameHeader> paused_header;
  /// Whether read() is running without the endpoint's mutex.
  bool is_reading = false;

 private:
  enum class Step { connecting, hello, verdict, open };
  Read read_bytes();
  std::optional<Greeting> receive(std::span<std::byte> bytes);
  std::optional<Greeting> send(std::span<std::byte> bytes);
  void open();
  void take(std::size_t count);

  coordinator::ByteSocket socket_;
  const bool initiator_;
  const bool encrypts_;  // TLS carries the frames
  Deadline since_{};
  int rank_ = -1;
  Step step_;
  Hello hello_;
  Verdict verdict_{};
  std::size_t received_ = 0;  // of what the step receives
  int error_ = 0;
  // Bytes that were read behind the last body: [begin_, end_).
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<std::byte> discarded_;  // takes the bytes of a body without memory
};

}  // namespace tutti::comm
