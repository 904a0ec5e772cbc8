#pragma once
// One way to train on several ranks.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "sync/mode.h"
#include "sync/stopwatch.h"
#include "sync/workload.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

/// What all systems work with. The references outlive the systems.
struct Arena {
  const Workload& workload;
  const Stopwatch& stopwatch;
};

class System {
 public:
  virtual ~System() = default;

  virtual std::string name() const = 0;
  virtual std::vector<Mode> modes() const = 0;
  /// Whether ranks are to end with equal parameters.
  virtual bool synchronizes() const { return true; }
  /// Whether gradients lose digits on their way, so that parameters end near those of the others only.
  virtual bool rounds_gradients() const { return false; }
  /// Trains a fresh model. Every rank calls it with the same mode.
  virtual Measurement run(Mode mode) = 0;
};

std::unique_ptr<System> make_no_communication_system(const Arena& arena);
std::unique_ptr<System> make_hand_written_system(const Arena& arena, c10::intrusive_ptr<c10d::ProcessGroup> group);
std::unique_ptr<System> make_c10d_reducer_system(const Arena& arena, c10::intrusive_ptr<c10d::ProcessGroup> group);
std::unique_ptr<System> make_tutti_system(const Arena& arena, const Communicator& communicator);
/// The same with gradients as bf16 between nodes.
std::unique_ptr<System> make_tutti_bf16_system(const Arena& arena, const Communicator& communicator);

}  // namespace tutti::bench
