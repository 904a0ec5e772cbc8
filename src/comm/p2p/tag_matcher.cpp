#include "comm/p2p/tag_matcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/backend/describe.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// A message that a rank sent before it exited may still be in flight.
constexpr auto in_flight_grace = std::chrono::milliseconds(300);

bool any_request(const Request&) {
  return true;
}

void fail_receive(RequestPtr request, const std::string& reason, Completions& completions) {
  std::vector<int> failed_ranks;
  if (request->peer != any_source) failed_ranks.push_back(request->peer);
  auto failure = std::make_exception_ptr(
      PeerError(request->description + ": " + request->peer_name() + reason, std::move(failed_ranks)));
  completions.push_back({std::move(request), std::move(failure)});
}

void time_out_receive(RequestPtr request, Completions& completions) {
  std::vector<int> failed_ranks;
  if (request->peer != any_source) failed_ranks.push_back(request->peer);
  auto failure =
      std::make_exception_ptr(TimeoutError(request->description + ": no message from " + request->peer_name() +
                                               " within " + describe_duration(request->timeout),
                                           std::move(failed_ranks)));
  completions.push_back({std::move(request), std::move(failure)});
}

/// A receive that does not fit ends with an error, and the message is lost.
bool length_matches(const MessageHeader& header, const RequestPtr& request, Completions& completions) {
  if (header.bytes == request->memory.size()) return true;
  const MismatchError error(request->description + ": rank " + std::to_string(header.source) + " sent " +
                            std::to_string(header.bytes) + " bytes, but this rank expects " +
                            std::to_string(request->memory.size()) + ". The message is dropped.");
  completions.push_back({request, std::make_exception_ptr(error)});
  return false;
}

void deliver_unexpected(UnexpectedMessage& message, Completions& completions) {
  const auto request = std::exchange(message.request, nullptr);
  if (!message.bytes.empty()) std::memcpy(request->memory.data(), message.bytes.data(), message.bytes.size());
  completions.push_back({request, nullptr, message.source});
}

constexpr std::uint64_t discard_chunk_bytes = 64 * 1024;

bool exit_confirmed(Request& request, Deadline now) {
  if (!request.peer_has_exited()) {
    request.exited_since.reset();
    return false;
  }
  if (!request.exited_since) request.exited_since = now;
  return now - *request.exited_since >= in_flight_grace;
}

}  // namespace

bool Body::next_chunk() {
  if (bytes_after == 0) return false;
  to = std::span(discard_buffer)
           .first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes_after, discard_buffer.size())));
  bytes_after -= to.size();
  read = 0;
  return true;
}

void Body::discard_rest() {
  bytes_after = header.bytes - read;
  discard_buffer.resize(static_cast<std::size_t>(std::min(bytes_after, discard_chunk_bytes)));
  to = {};
  read = 0;
  next_chunk();
}

bool TagMatcher::can_accept(const MessageHeader& header) {
  if (header.kind == MessageHeader::Kind::close || closed_groups_.contains(header.group)) return true;
  return header.bytes <= unexpected_limit_ - std::min(unexpected_limit_, unexpected_bytes_) ||
         queues_[header.group].has_receive(header.source, header.tag);
}

void TagMatcher::receive(std::uint64_t group, RequestPtr request, Completions& completions) {
  if (const auto closed = closed_groups_.find(group); closed != closed_groups_.end()) {
    completions.push_back({std::move(request), closed->second});
    return;
  }
  MatchQueue& queue = queues_[group];
  if (const auto message = queue.match_message(*request)) {
    release_bytes(*message);
    const MessageHeader header{.tag = message->tag, .source = message->source, .bytes = message->bytes.size()};
    if (!length_matches(header, request, completions)) return;
    message->request = std::move(request);
    if (message->complete) deliver_unexpected(*message, completions);
  } else if (const char* reason = request->peer == any_source ? nullptr : queue.close_reason(request->peer)) {
    fail_receive(std::move(request), reason, completions);
  } else {
    queue.add(std::move(request));
  }
}

std::optional<Body> TagMatcher::on_header(const MessageHeader& header, int from, Completions& completions) {
  sources_[header.group][header.source] = from;
  const bool closed = closed_groups_.contains(header.group);
  if (header.kind == MessageHeader::Kind::close) {
    if (closed) return std::nullopt;
    constexpr const char* reason = " has left the group";
    for (auto& request : queues_[header.group].mark_closed(header.source, reason))
      fail_receive(std::move(request), reason, completions);
    return std::nullopt;
  }
  Body body{.header = header, .request = nullptr, .message = nullptr, .discard_buffer = {}, .to = {}};
  auto request = closed ? nullptr : queues_[header.group].match_receive(header.source, header.tag);
  if (closed || (request && !length_matches(header, request, completions))) {
    body.discard_rest();
  } else if (request) {
    body.to = request->memory;
    body.request = std::move(request);
  } else {
    body.message = std::make_shared<UnexpectedMessage>();
    body.message->source = header.source;
    body.message->tag = header.tag;
    body.message->bytes.resize(static_cast<std::size_t>(header.bytes));
    body.to = body.message->bytes;
    unexpected_bytes_ += body.message->bytes.size();
    queues_[header.group].add(body.message);
  }
  return body;
}

void TagMatcher::on_body(Body& body, Completions& completions) {
  if (body.request) {
    completions.push_back({std::exchange(body.request, nullptr), nullptr, body.header.source});
  } else if (body.message) {
    body.message->complete = true;
    if (body.message->request) deliver_unexpected(*body.message, completions);
  }
}

void TagMatcher::on_disconnect(int from, Body* body, Completions& completions) {
  constexpr const char* reason = " disconnected (connection closed)";
  if (body != nullptr) {
    auto& request = body->message ? body->message->request : body->request;
    if (request) fail_receive(std::exchange(request, nullptr), reason, completions);
    if (body->message && queues_[body->header.group].remove(body->message)) release_bytes(*body->message);
  }
  for (auto& [group, by_source] : sources_) {
    for (const auto& [source, rank] : by_source) {
      if (rank != from || closed_groups_.contains(group)) continue;
      for (auto& request : queues_[group].mark_closed(source, reason))
        fail_receive(std::move(request), reason, completions);
    }
  }
}

bool TagMatcher::close_group(std::uint64_t group, const std::exception_ptr& failure, Completions& completions) {
  if (!closed_groups_.emplace(group, failure).second) return false;
  for (auto& request : queues_[group].take_receives(any_request)) completions.push_back({std::move(request), failure});
  for (const auto& message : queues_[group].messages()) release_bytes(*message);
  queues_.erase(group);
  return true;
}

void TagMatcher::close_all(Completions& completions) {
  for (auto& [group, queue] : queues_) {
    for (auto& request : queue.take_receives(any_request))
      fail_receive(std::move(request), " is no longer awaited: the communicator was closed", completions);
  }
}

void TagMatcher::expire(Deadline now, bool check_exited, Completions& completions) {
  for (auto& [group, queue] : queues_) {
    for (auto& request : queue.take_receives([&](const Request& one) { return one.deadline <= now; })) {
      time_out_receive(std::move(request), completions);
    }
    if (!check_exited) continue;
    for (auto& request : queue.take_receives([&](Request& one) { return exit_confirmed(one, now); })) {
      fail_receive(std::move(request), " exited or disconnected", completions);
    }
  }
}

void TagMatcher::expire(Body& body, Deadline now, Completions& completions) {
  RequestPtr& receiver = body.message ? body.message->request : body.request;
  if (!receiver || receiver->deadline > now) return;
  if (!body.message) body.discard_rest();
  time_out_receive(std::exchange(receiver, nullptr), completions);
}

std::optional<Deadline> TagMatcher::next_deadline() const {
  std::optional<Deadline> next;
  for (const auto& [group, queue] : queues_) {
    for (const auto& request : queue.receives()) next = std::min(next.value_or(request->deadline), request->deadline);
  }
  return next;
}

}  // namespace tutti::comm
