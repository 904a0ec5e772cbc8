#include "coordinator/messages.h"

namespace tutti::coordinator {
namespace {

// An enumerator of which `last` is the greatest.
template <typename Enum>
Enum get_enum(BodyReader& reader, Enum last) {
  const auto value = reader.get<std::uint8_t>();
  if (value > static_cast<std::uint8_t>(last)) throw DamagedFrame("an unknown enumerator");
  return static_cast<Enum>(value);
}

std::chrono::milliseconds timeout_from(BodyReader& reader) {
  constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365 * 100);
  const std::chrono::milliseconds timeout(reader.get<std::int64_t>());
  if (timeout < timeout.zero() || timeout > longest) throw DamagedFrame("a timeout is out of range");
  return timeout;
}

}  // namespace

std::string Hello::frame() const {
  BodyWriter body;
  body.put(wire_version).put(static_cast<std::int32_t>(member.rank)).put(static_cast<std::int32_t>(member.world_size));
  body.text(member.node)
      .text(member.version)
      .put(static_cast<std::int32_t>(member.restart))
      .put(key[0])
      .put(key[1])
      .put(events_seen);
  body.put(static_cast<std::int64_t>(timeouts.heartbeat.count()));
  body.put(static_cast<std::int64_t>(timeouts.deadlock.count())).text(member.job);
  return body.frame(MessageType::hello);
}

Hello Hello::from_body(std::string_view body) {
  BodyReader reader(body);
  Hello hello;
  const auto version = reader.get<std::uint32_t>();
  hello.member.rank = reader.get<std::int32_t>();
  hello.member.world_size = reader.get<std::int32_t>();
  hello.member.node = reader.text();
  hello.member.version = reader.text();
  if (version != wire_version) {  // what follows may differ
    hello.member.version += " (wire format " + std::to_string(version) + ")";
    hello.has_known_format = false;
    return hello;
  }
  hello.member.restart = reader.get<std::int32_t>();
  hello.key = {reader.get<std::uint64_t>(), reader.get<std::uint64_t>()};
  hello.events_seen = reader.get<std::uint64_t>();
  hello.timeouts = {.heartbeat = timeout_from(reader), .deadlock = timeout_from(reader)};
  hello.member.job = reader.text();
  reader.expect_end();
  return hello;
}

std::string ErrorReply::frame(std::uint64_t tag) const {
  return BodyWriter().put(error).ranks(ranks).text(text).frame(MessageType::error_reply, tag);
}

ErrorReply ErrorReply::from_body(std::string_view body) {
  BodyReader reader(body);
  ErrorReply reply;
  reply.error = get_enum(reader, RequestError::peer_failed);
  reply.ranks = reader.ranks();
  reply.text = reader.text();
  return reply;
}

std::string frame_of(const FailedRanks& failed) {
  return BodyWriter()
      .put(failed.cause)
      .put(static_cast<std::uint8_t>(failed.is_warning))
      .ranks(failed.ranks)
      .frame(MessageType::failed);
}

FailedRanks failed_ranks_from(std::string_view body) {
  BodyReader reader(body);
  FailedRanks failed;
  failed.cause = get_enum(reader, Cause::unreachable);
  failed.is_warning = reader.get<std::uint8_t>() != 0;
  failed.ranks = reader.ranks();
  return failed;
}

std::string frame_of(const Deadlock& deadlock) {
  return BodyWriter()
      .put(static_cast<std::uint8_t>(deadlock.is_certain))
      .text(deadlock.text)
      .frame(MessageType::deadlock);
}

Deadlock deadlock_from(std::string_view body) {
  BodyReader reader(body);
  Deadlock deadlock;
  deadlock.is_certain = reader.get<std::uint8_t>() != 0;
  deadlock.text = reader.text();
  return deadlock;
}

}  // namespace tutti::coordinator
