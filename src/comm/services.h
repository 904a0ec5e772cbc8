#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/deadlock/deadlock_detector.h"
#include "comm/transport/tcp/group_endpoint.h"
#include "flight/recorder.h"

namespace tutti::comm {

/// The services that a communicator shares with its children. Each may be null.
struct Services {
  std::shared_ptr<flight::Recorder> recorder{};           ///< records operations
  std::shared_ptr<GroupEndpoint> p2p{};                   ///< sends point-to-point messages
  std::shared_ptr<DeadlockDetector> deadlock_detector{};  ///< detects calls made on some ranks only; needs p2p

  /// The services of a group called `name` of `members`.
  Services for_group(const std::vector<int>& members, const std::string& name) const {
    return {
        .recorder = recorder, .p2p = p2p ? p2p->of(members, name) : nullptr, .deadlock_detector = deadlock_detector};
  }
};

}  // namespace tutti::comm
