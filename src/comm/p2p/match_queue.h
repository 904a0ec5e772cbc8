#pragma once
// The messages of one group that have come, and the receives that wait for some. Pure.
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "comm/p2p/request.h"

namespace tutti::comm {

/// A message without a matching receive so far.
struct UnexpectedMessage {
  int source = 0;
  int tag = 0;
  std::vector<std::byte> bytes;
  bool complete = false;
  RequestPtr request;  ///< who takes it once it is complete
};
using UnexpectedMessagePtr = std::shared_ptr<UnexpectedMessage>;

class MatchQueue {
 public:
  /// The receive that takes a message which begins to come: the first one that fits; null where none does.
  RequestPtr match_receive(int source, int tag);
  bool has_receive(int source, int tag) const;
  /// The message that `request` takes: the first one that fits; null where none has come.
  UnexpectedMessagePtr match_message(const Request& request);

  void add(RequestPtr request) { receives_.push_back(std::move(request)); }
  void add(UnexpectedMessagePtr message) { messages_.push_back(std::move(message)); }
  /// A message that will never be complete. Returns false where it has been taken.
  bool remove(const UnexpectedMessagePtr& message) { return std::erase(messages_, message) > 0; }
  const std::deque<UnexpectedMessagePtr>& messages() const { return messages_; }

  /// `source` sends nothing any more: `reason` is what errors say. Returns the receives that wait for it.
  std::vector<RequestPtr> mark_closed(int source, const char* reason);
  /// Why nothing comes from `source` any more; null where something may.
  const char* close_reason(int source) const {
    const auto found = closed_sources_.find(source);
    return found == closed_sources_.end() ? nullptr : found->second;
  }

  /// Removes and returns all receives for which `predicate` holds.
  template <typename Predicate>
  std::vector<RequestPtr> take_receives(const Predicate& predicate) {
    std::vector<RequestPtr> removed;
    std::erase_if(receives_, [&](const RequestPtr& request) {
      if (!predicate(*request)) return false;
      removed.push_back(request);
      return true;
    });
    return removed;
  }
  const std::deque<RequestPtr>& receives() const { return receives_; }

 private:
  std::deque<RequestPtr> receives_;
  std::deque<UnexpectedMessagePtr> messages_;
  std::map<int, const char*> closed_sources_;
};

}  // namespace tutti::comm
