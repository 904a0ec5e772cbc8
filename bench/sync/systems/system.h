#pragma once
// A system that trains on several ranks.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

#include "sync/mode.h"
#include "sync/stopwatch.h"
#include "sync/workload.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/wire_codec.h"

namespace tutti::bench {

/// The inputs of all systems. The references must outlive the systems.
struct BenchContext {
  const Workload& workload;
  const Communicator& communicator;

  /// Runs `train` over the warm-up, then over the epoch, which is timed.
  Measurement measure(const Parameters& parameters, const std::function<void(const Epoch&)>& train) const {
    return bench::measure(
        communicator, parameters, workload.timed().batches.size(), [&] { train(workload.warm_up()); },
        [&] { train(workload.timed()); });
  }
};

class System {
 public:
  virtual ~System() = default;

  virtual std::string name() const = 0;
  virtual std::vector<Mode> modes() const = 0;
  /// True if all ranks must have equal parameters at the end.
  virtual bool synchronizes() const { return true; }
  /// True if gradients are rounded for sending, so that parameters only approximate those of other systems.
  virtual bool rounds_gradients() const { return false; }
  /// Searches for the fastest settings on this machine, before any measurement. Every rank must call it.
  virtual void tune() {}
  /// Describes the settings for the table's notes; empty for the defaults.
  virtual std::string settings() const { return {}; }
  /// Trains a fresh model. Every rank must call it with the same mode.
  virtual Measurement run(Mode mode) = 0;
};

std::unique_ptr<System> make_no_communication_system(const BenchContext& context);
std::unique_ptr<System> make_hand_written_system(const BenchContext& context,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group);
std::unique_ptr<System> make_c10d_reducer_system(const BenchContext& context,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group);
/// c10d::Reducer with its hook that sends gradients as fp16.
std::unique_ptr<System> make_c10d_fp16_system(const BenchContext& context,
                                              c10::intrusive_ptr<c10d::ProcessGroup> group);
/// tutti with LibTorch's AdamW, as in the other systems.
std::unique_ptr<System> make_tutti_system(const BenchContext& context);
/// tutti with gradients encoded between nodes.
std::unique_ptr<System> make_tutti_encoded_system(const BenchContext& context, std::shared_ptr<const WireCodec> codec);
/// tutti's default: its own fused AdamW.
std::unique_ptr<System> make_tutti_fused_system(const BenchContext& context);

}  // namespace tutti::bench
