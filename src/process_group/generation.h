#pragma once
// What a group remembers for ProcessGroupTutti::reconfigure().
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "comm/connect_peers.h"
#include "tutti/process_group/process_group_tutti.h"

namespace tutti {

struct ProcessGroupTutti::Generation {
  explicit Generation(std::string host) : store_host(std::move(host)) {}

  const std::string store_host;           ///< see comm::listen_for_peers()
  std::int64_t number = 0;                ///< the uuid of the last reconfigure()
  std::set<std::int64_t> used_numbers{};  ///< also of attempts that failed

  std::mutex mutex{};
  std::optional<comm::CoordinatorPlace> own_place{};  ///< from get_reconfigure_handle() to reconfigure()
};

namespace process_group {

inline CommunicatorOptions communicator_options(const ProcessGroupTutti::Options& options) {
  return {
      .backend = options.communicator_backend, .timeout = options.timeout, .connect_timeout = options.connect_timeout};
}

}  // namespace process_group
}  // namespace tutti
