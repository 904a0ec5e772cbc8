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
struct BenchContext {
  const Workload& workload;
  const Stopwatch& stopwatch;
  const Communicator& communicator;
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
  /// Looks for what suits this machine, as its users would, before anything is timed. Every rank must call it.
  virtual void tune() {}
  /// What it runs with, in words for the table's notes; empty where that is its defaults.
  virtual std::string settings() const { return {}; }
  /// Trains a fresh model. Every rank calls it with the same mode.
  virtual Measurement run(Mode mode) = 0;
};

std::unique_ptr<System> make_no_communication_system(const BenchContext& context);
std::unique_ptr<System> make_hand_written_system(const BenchContext& context,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group);
std::unique_ptr<System> make_c10d_reducer_system(const BenchContext& context,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group);
/// The same with its hook that sends gradients as fp16.
std::unique_ptr<System> make_c10d_fp16_system(const BenchContext& context,
                                              c10::intrusive_ptr<c10d::ProcessGroup> group);
/// Steps with LibTorch's AdamW, as the others do.
std::unique_ptr<System> make_tutti_system(const BenchContext& context);
/// The same with gradients as bf16 between nodes.
std::unique_ptr<System> make_tutti_bf16_system(const BenchContext& context);
/// What a user gets without asking: tutti's own, fused step.
std::unique_ptr<System> make_tutti_fused_system(const BenchContext& context);

}  // namespace tutti::bench
