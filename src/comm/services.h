#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/deadlock/deadlock_detector.h"
#include "comm/p2p/group_endpoint.h"
#include "flight/recorder.h"

namespace tutti::comm {

/// What a channel shares with those that are made from it. Each may be null.
struct Services {
  std::shared_ptr<flight::Recorder> recorder{};           ///< writes down operations
  std::shared_ptr<GroupEndpoint> p2p{};                   ///< messages from rank to rank
  std::shared_ptr<DeadlockDetector> deadlock_detector{};  ///< finds calls that were made on some ranks only; needs p2p

  /// For a group of `members` called `name`.
  Services for_group(const std::vector<int>& members, const std::string& name) const {
    return {
        .recorder = recorder, .p2p = p2p ? p2p->of(members, name) : nullptr, .deadlock_detector = deadlock_detector};
  }
};

}  // namespace tutti::comm
