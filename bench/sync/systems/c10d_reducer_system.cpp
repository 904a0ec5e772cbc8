// PyTorch's own engine, driven as torch.nn.parallel.DistributedDataParallel drives it, without Python.
#include <torch/optim/adamw.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <limits>

#include "sync/systems/system.h"

namespace tutti::bench {
namespace {

/// The part of DistributedDataParallel that a training loop meets.
class DistributedDataParallel {
 public:
  DistributedDataParallel(const Parameters& parameters, c10::intrusive_ptr<c10d::ProcessGroup> group)
      : reducer_(make_reducer(parameters, std::move(group))), logger_(std::make_shared<c10d::Logger>(reducer_)) {
    reducer_->set_logger(logger_);
  }

  /// DDP does these around forward; whether backward will reduce is decided here.
  void before_forward(bool synchronizes) {
    if (synchronizes) reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
  }
  void after_forward(bool synchronizes) {
    if (synchronizes) reducer_->prepare_for_backward({});
  }

 private:
  static std::shared_ptr<c10d::Reducer> make_reducer(const Parameters& parameters,
                                                     c10::intrusive_ptr<c10d::ProcessGroup> group) {
    const std::vector<bool> sparse(parameters.size(), false);
    // DDP starts with everything in one bucket. The Reducer rebuilds the buckets after the first synchronized pass, in
    // the order in which gradients came, with DDP's caps.
    auto [buckets, limits] =
        c10d::compute_bucket_assignment_by_size(parameters, {std::numeric_limits<std::size_t>::max()}, sparse);
    return std::make_shared<c10d::Reducer>(parameters, std::vector(buckets.rbegin(), buckets.rend()), std::move(group),
                                           sparse, c10d::kDefaultBucketBytesCap, /*find_unused_parameters=*/false,
                                           /*gradient_as_bucket_view=*/false,
                                           /*param_names=*/std::unordered_map<std::size_t, std::string>{},
                                           c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
                                           /*use_python_reducer=*/false,
                                           /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  }

  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

class C10dReducerSystem : public System {
 public:
  C10dReducerSystem(const Arena& arena, c10::intrusive_ptr<c10d::ProcessGroup> group)
      : arena_(arena), group_(std::move(group)) {}

  std::string name() const override { return "c10d::Reducer"; }
  std::vector<Mode> modes() const override { return {Mode::baseline, Mode::no_sync_misplaced, Mode::no_sync}; }

  Measurement run(Mode mode) override {
    auto net = arena_.workload.make_model();
    torch::optim::AdamW optimizer(net->parameters(), learning_rate);
    DistributedDataParallel ddp(net->parameters(), group_);
    return arena_.stopwatch.measure(net->parameters(), [&](const Epoch& epoch) {
      for (const auto& [tokens, ends_window] : epoch.batches) {
        // A no_sync that is opened after forward comes too late: the pass is prepared to reduce, and does.
        const bool synchronizes = ends_window || mode != Mode::no_sync;
        ddp.before_forward(synchronizes);
        const auto loss = loss_of(net, tokens) / arena_.workload.steps();
        ddp.after_forward(synchronizes);
        loss.backward();
        if (ends_window) {
          optimizer.step();
          optimizer.zero_grad();
        }
      }
    });
  }

 private:
  Arena arena_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<System> make_c10d_reducer_system(const Arena& arena, c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return std::make_unique<C10dReducerSystem>(arena, std::move(group));
}

}  // namespace tutti::bench
