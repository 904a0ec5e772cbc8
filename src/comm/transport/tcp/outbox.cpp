#include "comm/transport/tcp/outbox.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::size_t max_frames_in_write = 32;

}  // namespace

void Outbox::add(MessagePtr message) {
  FrameHeader header{.channel = message->channel, .tag = message->tag, .bytes = message->memory.size()};
  if (header.bytes <= message->eager_bytes) {
    frames_.push_back({.header = header, .message = std::move(message)});
    return;
  }
  header.kind = FrameHeader::Kind::announce;
  header.id = ++last_id_;
  announced_.emplace(header.id, std::move(message));
  add(header);
}

void Outbox::add_urgent(const FrameHeader& header) {
  auto position = std::next(frames_.begin(), static_cast<std::ptrdiff_t>(in_write_));
  if (in_write_ == 0 && !frames_.empty() && frames_.front().sent > 0) ++position;
  frames_.insert(position, {.header = header});
}

bool Outbox::has_messages() const {
  return !announced_.empty() ||
         std::ranges::any_of(frames_, [](const Frame& frame) { return frame.message != nullptr; });
}

std::vector<iovec> Outbox::begin_write() {
  is_writing_ = true;
  std::vector<iovec> parts;
  for (Frame& frame : frames_) {
    if (in_write_ == max_frames_in_write) break;
    ++in_write_;
    if (frame.sent < sizeof(frame.header)) {
      auto* const header = reinterpret_cast<std::byte*>(&frame.header);
      parts.push_back({.iov_base = header + frame.sent, .iov_len = sizeof(frame.header) - frame.sent});
    }
    const std::size_t first = std::max(frame.sent, sizeof(frame.header));
    if (first == frame.size()) continue;
    std::byte* const bytes = frame.copy ? frame.copy.get() + (first - frame.copied_from)
                                        : frame.message->memory.data() + (first - sizeof(frame.header));
    parts.push_back({.iov_base = bytes, .iov_len = frame.size() - first});
  }
  return parts;
}

void Outbox::end_write(std::size_t count, Effects& effects) {
  is_writing_ = false;
  in_write_ = 0;
  while (!frames_.empty()) {
    Frame& frame = frames_.front();
    const std::size_t written = std::min(count, frame.size() - frame.sent);
    frame.sent += written;
    count -= written;
    if (frame.sent < frame.size()) return;
    if (frame.message) effects.complete(std::move(frame.message), {});
    frames_.pop_front();
    if (count == 0) return;
  }
}

bool Outbox::on_pull(std::uint64_t id) {
  const auto found = announced_.find(id);
  if (found == announced_.end()) return id <= last_id_;
  const Message& message = *found->second;
  const FrameHeader header{.kind = FrameHeader::Kind::payload,
                           .channel = message.channel,
                           .tag = message.tag,
                           .bytes = message.memory.size(),
                           .id = id};
  frames_.push_back({.header = header, .message = std::move(found->second)});
  announced_.erase(found);
  return true;
}

bool Outbox::on_refuse(std::uint64_t id, std::uint64_t bytes, Effects& effects) {
  const auto found = announced_.find(id);
  if (found == announced_.end()) return id <= last_id_;
  const bool closed = bytes == FrameHeader::channel_closed;
  effects.complete(std::move(found->second),
                   {.kind = closed ? Outcome::Kind::closed_by_peer : Outcome::Kind::mismatch, .bytes = bytes});
  announced_.erase(found);
  return true;
}

Removal Outbox::remove(const Message& message) {
  const auto withdraw = [&](std::uint64_t id) {
    return FrameHeader{.kind = FrameHeader::Kind::withdraw, .channel = message.channel, .id = id};
  };
  const auto announced =
      std::ranges::find_if(announced_, [&](const auto& entry) { return entry.second.get() == &message; });
  if (announced != announced_.end()) {
    add(withdraw(announced->first));
    announced_.erase(announced);
    return Removal::removed;
  }
  std::size_t position = 0;
  for (auto frame = frames_.begin(); frame != frames_.end(); ++frame, ++position) {
    if (frame->message.get() != &message) continue;
    if (position < in_write_) return Removal::busy;
    if (frame->sent == 0) {
      if (frame->header.kind == FrameHeader::Kind::payload)
        frames_.insert(frame, {.header = withdraw(frame->header.id)});
      frames_.erase(frame);
      return Removal::removed;
    }
    frame->copied_from = std::max(frame->sent, sizeof(frame->header));
    const std::size_t length = frame->size() - frame->copied_from;
    frame->copy = std::make_unique_for_overwrite<std::byte[]>(length);
    if (length > 0)
      std::memcpy(frame->copy.get(), message.memory.data() + (frame->copied_from - sizeof(frame->header)), length);
    frame->message = nullptr;
    return Removal::removed;
  }
  return Removal::absent;
}

void Outbox::clear() {
  frames_.clear();
  announced_.clear();
}

}  // namespace tutti::comm
