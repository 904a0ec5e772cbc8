#include "comm/p2p/match_queue.h"

#include <algorithm>

namespace tutti::comm {
namespace {

bool request_matches(const Request& request, int source, int tag) {
  return request.tag == tag && (request.peer == any_source || request.peer == source);
}

}  // namespace

bool MatchQueue::has_receive(int source, int tag) const {
  return std::ranges::any_of(receives_,
                             [&](const RequestPtr& request) { return request_matches(*request, source, tag); });
}

RequestPtr MatchQueue::match_receive(int source, int tag) {
  const auto found = std::ranges::find_if(
      receives_, [&](const RequestPtr& request) { return request_matches(*request, source, tag); });
  if (found == receives_.end()) return nullptr;
  auto request = *found;
  receives_.erase(found);
  return request;
}

UnexpectedMessagePtr MatchQueue::match_message(const Request& request) {
  const auto found = std::ranges::find_if(messages_, [&](const UnexpectedMessagePtr& message) {
    return request_matches(request, message->source, message->tag);
  });
  if (found == messages_.end()) return nullptr;
  auto message = *found;
  messages_.erase(found);
  return message;
}

std::vector<RequestPtr> MatchQueue::mark_closed(int source, const char* reason) {
  closed_sources_.emplace(source, reason);
  return take_receives([&](const Request& request) { return request.peer == source; });
}

}  // namespace tutti::comm
