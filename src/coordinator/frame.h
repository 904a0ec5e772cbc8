#pragma once
// Frames between ranks and the coordinator (docs/wire_format.md): a header, then a body of fields, all little-endian. A
// reader checks every length and count before it uses it.
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coordinator/job.h"

namespace tutti::coordinator {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are in memory");

enum class MessageType : std::uint16_t {
  // rank -> coordinator
  hello = 1,
  heartbeat,
  leave,
  cancel,  ///< of the request with the frame's tag
  set,
  add,
  compare_set,
  get,
  wait,
  check,
  erase,
  num_keys,
  all_gather,
  report,
  blocked,
  unblocked,
  // coordinator -> rank
  welcome = 100,
  refused,
  not_yet,  ///< the rank may come again later
  probe,    ///< asks for a heartbeat
  reply,
  error_reply,
  failed,
  left,
  failure_report,
  deadlock,
  job_ended,  ///< the ranks contradict each other
};

struct FrameHeader {
  std::uint32_t length = 0;  ///< of the body
  std::uint16_t type = 0;
  std::uint16_t zero = 0;
  std::uint64_t tag = 0;  ///< of a request and its reply

  MessageType message() const { return static_cast<MessageType>(type); }
};
static_assert(sizeof(FrameHeader) == 16 && std::is_trivially_copyable_v<FrameHeader>);

inline constexpr std::size_t max_key_bytes = std::size_t{64} << 10;
/// One value with its key. A reply with several values may have as many bytes.
inline constexpr std::size_t max_body_bytes = max_value_bytes + max_key_bytes + 64;
/// Of a peer that has not said hello.
inline constexpr std::size_t max_hello_bytes = 4096;

/// The peer has sent bytes that no peer of this version sends. The connection is closed.
class DamagedFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class BodyWriter {
 public:
  template <typename T>
  BodyWriter& put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  BodyWriter& text(std::string_view value) {
    put(static_cast<std::uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  BodyWriter& ranks(const std::vector<int>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    for (const int value : values) put(static_cast<std::int32_t>(value));
    return *this;
  }
  BodyWriter& texts(const std::vector<std::string>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    for (const auto& value : values) text(value);
    return *this;
  }
  std::size_t size() const { return bytes_.size(); }
  std::string frame(MessageType type, std::uint64_t tag = 0) const {
    const FrameHeader header{
        .length = static_cast<std::uint32_t>(bytes_.size()), .type = static_cast<std::uint16_t>(type), .tag = tag};
    std::string frame(reinterpret_cast<const char*>(&header), sizeof(header));
    return frame += bytes_;
  }

 private:
  std::string bytes_;
};

/// Throws DamagedFrame where the body has fewer bytes than a field needs.
class BodyReader {
 public:
  explicit BodyReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string text() { return std::string(take(get<std::uint32_t>())); }
  std::vector<int> ranks() {
    std::vector<int> values(count(sizeof(std::int32_t)));
    for (int& value : values) value = get<std::int32_t>();
    return values;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> values(count(sizeof(std::uint32_t)));
    for (auto& value : values) value = text();
    return values;
  }
  void expect_end() const {
    if (!rest_.empty()) throw DamagedFrame("a body has more bytes than its fields");
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) throw DamagedFrame("a body has fewer bytes than its fields");
    const auto taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  // A count of elements that have `smallest` bytes or more each.
  std::size_t count(std::size_t smallest) {
    const auto count = get<std::uint32_t>();
    if (count > rest_.size() / smallest) throw DamagedFrame("a count exceeds the body");
    return count;
  }

  std::string_view rest_;
};

/// Cuts the bytes of a connection into frames.
class FrameBuffer {
 public:
  void set_max_body(std::size_t bytes) { max_body_ = bytes; }
  void append(std::string_view bytes) { bytes_.append(bytes); }
  /// Calls on_frame(header, body) for each complete frame while `continues` returns true. Throws DamagedFrame.
  template <typename OnFrame>
  void take_frames(
      const OnFrame& on_frame, const std::function<bool()>& continues = [] { return true; }) {
    std::size_t done = 0;
    while (bytes_.size() - done >= sizeof(FrameHeader) && continues()) {
      FrameHeader header;
      std::memcpy(&header, bytes_.data() + done, sizeof(header));
      if (header.zero != 0 || header.length > max_body_) throw DamagedFrame("no header of a frame");
      if (bytes_.size() - done - sizeof(header) < header.length) break;
      on_frame(header, std::string_view(bytes_).substr(done + sizeof(header), header.length));
      done += sizeof(header) + header.length;
    }
    bytes_.erase(0, done);
  }

 private:
  std::string bytes_;
  std::size_t max_body_ = max_hello_bytes;
};

}  // namespace tutti::coordinator
