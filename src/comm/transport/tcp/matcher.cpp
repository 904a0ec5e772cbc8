#include "comm/transport/tcp/matcher.h"

#include <algorithm>
#include <cstring>

namespace tutti::comm {
namespace {

using FrameKind = FrameHeader::Kind;

bool matches(const Message& receive, int source, std::uint64_t tag) {
  return receive.tag == tag && (receive.rank == any_source || receive.rank == source);
}

/// The copy is for the endpoint, which makes it without its mutex.
void deliver(UnexpectedMessage& unexpected, Effects& effects) {
  const Outcome outcome{.source = unexpected.source};
  effects.completions.push_back({std::move(unexpected.receive), outcome, std::move(unexpected.memory)});
}

}  // namespace

Outcome Matcher::end_reason(std::uint64_t channel, int rank) const {
  if (const auto closed = closed_channels_.find(channel); closed != closed_channels_.end())
    return {.kind = Outcome::Kind::closed, .failure = closed->second.failure};
  const auto found = channels_.find(channel);
  if (found != channels_.end() && found->second.closed_by.contains(rank))
    return {.kind = Outcome::Kind::closed_by_peer};
  if (const auto gone = disconnected_.find(rank); gone != disconnected_.end()) return gone->second;
  return {};
}

void Matcher::receive(MessagePtr message, Effects& effects) {
  if (!closed_channels_.contains(message->channel)) {
    auto& unexpected = channels_[message->channel].unexpected;
    const auto found =
        std::ranges::find_if(unexpected, [&](const auto& one) { return matches(*message, one->source, one->tag); });
    if (found != unexpected.end()) {
      const auto taken = *found;
      unexpected.erase(found);
      release(*taken);
      if (taken->id != 0)
        return pull({.bytes = taken->bytes, .id = taken->id}, taken->source, std::move(message), effects);
      if (!fits(message, taken->source, taken->bytes, effects)) return;
      taken->receive = std::move(message);
      if (taken->complete) deliver(*taken, effects);
      return;
    }
  }
  auto reason = end_reason(message->channel, message->rank);
  if (reason.kind != Outcome::Kind::completed) return effects.complete(std::move(message), std::move(reason));
  channels_[message->channel].receives.push_back(std::move(message));
}

bool Matcher::can_accept(const FrameHeader& header, int from) const {
  if (header.kind != FrameKind::message || closed_channels_.contains(header.channel)) return true;
  if (has_capacity_for(header.bytes)) return true;
  const auto found = channels_.find(header.channel);
  return found != channels_.end() && std::ranges::any_of(found->second.receives, [&](const MessagePtr& receive) {
           return matches(*receive, from, header.tag);
         });
}

bool Matcher::on_frame(const FrameHeader& header, int from, Body& body, Effects& effects) {
  body = {.left = header.bytes_behind()};
  switch (header.kind) {
    case FrameKind::message:
      on_message(header, from, body, effects);
      return true;
    case FrameKind::announce:
      return on_announce(header, from, effects);
    case FrameKind::payload:
      return on_payload(header, from, body);
    case FrameKind::withdraw:
      on_withdraw(header, from, effects);
      return true;
    case FrameKind::close:
      on_close(header.channel, from, effects);
      return true;
    default:
      return false;
  }
}

void Matcher::on_message(const FrameHeader& header, int from, Body& body, Effects& effects) {
  if (closed_channels_.contains(header.channel)) return;
  if (auto receive = take_receive(header.channel, from, header.tag)) {
    if (!fits(receive, from, header.bytes, effects)) return;
    body.destination.receive = std::move(receive);
  } else {
    body.destination.unexpected = add_unexpected(header, from, true);
  }
  body.to = body.destination.memory();
}

bool Matcher::on_announce(const FrameHeader& header, int from, Effects& effects) {
  std::uint64_t& last = last_announced_[from];
  if (header.id <= last) return false;
  if (closed_channels_.contains(header.channel)) {
    effects.reply(from, {.kind = FrameKind::refuse, .bytes = FrameHeader::channel_closed, .id = header.id});
  } else if (auto receive = take_receive(header.channel, from, header.tag)) {
    pull(header, from, std::move(receive), effects);
  } else if (!has_capacity_for(header.bytes)) {
    add_unexpected(header, from, false);
  } else {  // the send ends although no receive matches
    pulled_[{from, header.id}].unexpected = add_unexpected(header, from, true);
    effects.reply(from, {.kind = FrameKind::pull, .id = header.id});
  }
  last = header.id;
  return true;
}

std::shared_ptr<UnexpectedMessage> Matcher::add_unexpected(const FrameHeader& header, int from, bool with_memory) {
  auto unexpected = std::make_shared<UnexpectedMessage>();
  unexpected->source = from;
  unexpected->tag = header.tag;
  unexpected->bytes = header.bytes;
  unexpected->id = with_memory ? 0 : header.id;
  if (with_memory) {
    unexpected->memory = std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(header.bytes));
  }
  unexpected_bytes_ += memory_of(*unexpected);
  channels_[header.channel].unexpected.push_back(unexpected);
  return unexpected;
}

void Matcher::pull(const FrameHeader& header, int from, MessagePtr receive, Effects& effects) {
  FrameHeader reply{.kind = FrameKind::pull, .id = header.id};
  const auto expected = receive->memory.size();
  if (fits(receive, from, header.bytes, effects)) {
    pulled_[{from, header.id}].receive = std::move(receive);
  } else {
    reply.kind = FrameKind::refuse;
    reply.bytes = expected;
  }
  effects.reply(from, reply);
}

bool Matcher::on_payload(const FrameHeader& header, int from, Body& body) {
  const auto found = pulled_.find({from, header.id});
  if (found == pulled_.end()) return false;
  body.destination = std::move(found->second);
  pulled_.erase(found);
  const auto& [receive, unexpected] = body.destination;
  const auto expected = receive ? receive->memory.size() : unexpected ? unexpected->bytes : header.bytes;
  if (expected != header.bytes) return false;
  body.to = body.destination.memory();
  return true;
}

void Matcher::on_withdraw(const FrameHeader& header, int from, Effects& effects) {
  std::shared_ptr<UnexpectedMessage> withdrawn;
  if (const auto found = pulled_.find({from, header.id}); found != pulled_.end()) {
    if (auto receive = std::move(found->second.receiver()))
      effects.complete(std::move(receive), {.kind = Outcome::Kind::withdrawn, .source = from});
    withdrawn = std::move(found->second.unexpected);
    pulled_.erase(found);
    if (!withdrawn) return;
  }
  for (auto& [number, channel] : channels_) {  // of the announcement, whatever this header says
    std::erase_if(channel.unexpected, [&](const auto& one) {
      if (withdrawn ? one != withdrawn : one->id != header.id || one->source != from) return false;
      release(*one);
      return true;
    });
  }
}

void Matcher::on_close(std::uint64_t channel, int from, Effects& effects) {
  if (closed_channels_.contains(channel)) return;
  Channel& closed = channels_[channel];
  closed.closed_by.insert(from);
  fail_receives(closed, from, {.kind = Outcome::Kind::closed_by_peer}, effects);
}

void Matcher::on_body(Body& body, int from, Effects& effects) {
  auto& [receive, unexpected] = body.destination;
  if (receive) {
    effects.complete(std::move(receive), {.source = from});
  } else if (unexpected) {
    unexpected->complete = true;
    if (unexpected->receive) deliver(*unexpected, effects);
  }
  body = {};
}

void Matcher::on_disconnect(int from, Body& body, Outcome reason, Effects& effects) {
  reason.source = from;
  disconnected_.emplace(from, reason);
  const auto fail = [&](MessagePtr receive) {
    if (receive) effects.complete(std::move(receive), reason);
  };
  fail(std::move(body.destination.receiver()));
  for (auto& [id, channel] : channels_) {
    fail_receives(channel, from, reason, effects);
    std::erase_if(channel.unexpected, [&](const auto& one) {
      if (one->source != from || one->complete) return false;
      release(*one);
      return true;
    });
  }
  for (auto& [key, pulled] : pulled_) {
    if (key.first == from) fail(std::move(pulled.receiver()));
  }
  std::erase_if(pulled_, [&](const auto& entry) { return entry.first.first == from; });
  body = {};
}

bool Matcher::is_waiting(const Message& receive) const {
  const auto channel = channels_.find(receive.channel);
  return channel != channels_.end() &&
         std::ranges::any_of(channel->second.receives, [&](const MessagePtr& one) { return one.get() == &receive; });
}

bool Matcher::remove(const Message& receive) {
  const auto is_it = [&](const MessagePtr& one) { return one.get() == &receive; };
  if (const auto channel = channels_.find(receive.channel); channel != channels_.end()) {
    if (std::erase_if(channel->second.receives, is_it) > 0) return true;
  }
  for (auto& [key, pulled] : pulled_) {
    if (!is_it(pulled.receiver())) continue;
    pulled.receiver() = nullptr;
    return true;
  }
  return false;
}

bool Matcher::close_channel(const ClosedChannel& closed, Effects& effects) {
  const auto channel = closed.channel;
  const Outcome outcome{.kind = Outcome::Kind::closed, .failure = closed.failure};
  if (!closed_channels_.emplace(channel, closed).second) return false;
  for (auto& [key, pulled] : pulled_) {
    auto& receive = pulled.receiver();
    if (receive && receive->channel == channel) effects.complete(std::exchange(receive, nullptr), outcome);
  }
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return true;
  for (auto& receive : found->second.receives) effects.complete(std::move(receive), outcome);
  for (const auto& unexpected : found->second.unexpected) {
    release(*unexpected);
    if (unexpected->id == 0) continue;
    effects.reply(unexpected->source,
                  {.kind = FrameKind::refuse, .bytes = FrameHeader::channel_closed, .id = unexpected->id});
  }
  channels_.erase(found);
  return true;
}

MessagePtr Matcher::take_receive(std::uint64_t channel, int from, std::uint64_t tag) {
  const auto found = channels_.find(channel);
  if (found == channels_.end()) return nullptr;
  auto& receives = found->second.receives;
  const auto receive = std::ranges::find_if(receives, [&](const MessagePtr& one) { return matches(*one, from, tag); });
  if (receive == receives.end()) return nullptr;
  auto taken = std::move(*receive);
  receives.erase(receive);
  return taken;
}

/// A receive that does not fit ends, and its message is discarded.
bool Matcher::fits(const MessagePtr& receive, int from, std::uint64_t bytes, Effects& effects) const {
  if (receive->memory.size() == bytes) return true;
  effects.complete(receive, {.kind = Outcome::Kind::mismatch, .source = from, .bytes = bytes});
  return false;
}

void Matcher::fail_receives(Channel& channel, int from, const Outcome& reason, Effects& effects) {
  std::erase_if(channel.receives, [&](MessagePtr& receive) {
    if (receive->rank != from) return false;
    effects.complete(std::move(receive), reason);
    return true;
  });
}

}  // namespace tutti::comm
