#pragma once
// A call of a user that sends or receives one point-to-point message.
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/health/heartbeat_monitor.h"
#include "comm/transport/tcp/message.h"

namespace tutti::comm {

struct Request final : Message {
  std::string description;  ///< "receive (tag 3)"
  int peer = any_source;    ///< rank in the group
  int caller = 0;           ///< rank in the group. GroupEndpoint sets it.
  std::chrono::milliseconds timeout{0};
  std::function<void(int source)> on_completed;  ///< a message has come; `source` is a rank in the group
  /// Called once, with the failure or null. Nothing accesses the memory afterwards.
  std::function<void(std::exception_ptr failure)> mark_completed;
  /// Of the ranks of the group. GroupEndpoint sets it.
  std::shared_ptr<const GroupHealth> health;

  void complete(const Outcome& outcome) override;

 private:
  std::exception_ptr failure_of(const Outcome& outcome) const;
  int member(int global_rank) const;
};
using RequestPtr = std::shared_ptr<Request>;

}  // namespace tutti::comm
