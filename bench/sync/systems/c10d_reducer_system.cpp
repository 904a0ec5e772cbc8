// PyTorch's reducer, called as torch.nn.parallel.DistributedDataParallel calls it, without Python. It is tuned:
// gradients are views of buckets, and the bucket cap is the fastest of a scan.
#include <torch/optim/adamw.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "sync/systems/system.h"

namespace tutti::bench {
namespace {

constexpr std::int64_t mebibyte = 1 << 20;
constexpr std::array<std::int64_t, 3> caps = {1 * mebibyte, 4 * mebibyte, 25 * mebibyte};
constexpr int scans = 2;

/// The part of DistributedDataParallel that a training loop calls.
class DistributedDataParallel {
 public:
  DistributedDataParallel(const Parameters& parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                          std::int64_t bucket_bytes, bool fp16)
      : reducer_(make_reducer(parameters, std::move(group), bucket_bytes)),
        logger_(std::make_shared<c10d::Logger>(reducer_)) {
    reducer_->set_logger(logger_);
    if (fp16) reducer_->register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
  }

  /// DDP does this around forward. The pass is prepared here to reduce or not.
  void before_forward(bool synchronizes) {
    if (synchronizes) reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
  }
  void after_forward(bool synchronizes) {
    if (synchronizes) reducer_->prepare_for_backward({});
  }

 private:
  static std::shared_ptr<c10d::Reducer> make_reducer(const Parameters& parameters,
                                                     c10::intrusive_ptr<c10d::ProcessGroup> group,
                                                     std::int64_t bucket_bytes) {
    const std::vector<bool> sparse(parameters.size(), false);
    // DDP starts with one bucket. The Reducer rebuilds the buckets after the first synchronized pass, in the order of
    // the gradients, with DDP's caps.
    auto [buckets, limits] =
        c10d::compute_bucket_assignment_by_size(parameters, {std::numeric_limits<std::size_t>::max()}, sparse);
    return std::make_shared<c10d::Reducer>(parameters, std::vector(buckets.rbegin(), buckets.rend()), std::move(group),
                                           sparse, bucket_bytes, /*find_unused_parameters=*/false,
                                           /*gradient_as_bucket_view=*/true,
                                           /*param_names=*/std::unordered_map<std::size_t, std::string>{},
                                           std::min<std::int64_t>(c10d::kDefaultFirstBucketBytes, bucket_bytes),
                                           /*skip_all_reduce_unused_params=*/false,
                                           /*use_python_reducer=*/false,
                                           /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  }

  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

/// Does what PyTorch's zero_grad() does. LibTorch's refuses gradients that are views of buckets.
void drop_gradients(const Parameters& parameters) {
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
}

class C10dReducerSystem : public System {
 public:
  C10dReducerSystem(const BenchContext& context, c10::intrusive_ptr<c10d::ProcessGroup> group, bool fp16)
      : context_(context), group_(std::move(group)), fp16_(fp16) {}

  std::string name() const override { return fp16_ ? "c10d::Reducer, fp16 hook" : "c10d::Reducer"; }
  bool rounds_gradients() const override { return fp16_; }
  std::vector<Mode> modes() const override { return {Mode::baseline, Mode::no_sync_misplaced, Mode::no_sync}; }

  void tune() override {
    std::array<double, caps.size()> fastest{};
    for (int scan = 0; scan < scans; ++scan) {
      for (std::size_t i = 0; i < caps.size(); ++i) {
        bucket_bytes_ = caps[i];
        const double taken = run(Mode::no_sync).milliseconds_per_batch;
        fastest[i] = scan == 0 ? taken : std::min(fastest[i], taken);
      }
    }
    const auto best = std::ranges::min_element(fastest) - fastest.begin();
    at::Tensor agreed = at::full({1}, static_cast<std::int64_t>(best), at::kLong);
    context_.communicator.broadcast(agreed, 0).wait();
    bucket_bytes_ = caps.at(static_cast<std::size_t>(agreed.item<std::int64_t>()));
  }

  std::string settings() const override {
    return "gradient_as_bucket_view, buckets of " + std::to_string(bucket_bytes_ / mebibyte) +
           " MiB (with no_sync the fastest of 1, 4 and 25)";
  }

  Measurement run(Mode mode) override {
    auto net = context_.workload.make_model();
    torch::optim::AdamW optimizer(net->parameters(), learning_rate);
    DistributedDataParallel ddp(net->parameters(), group_, bucket_bytes_, fp16_);
    return context_.measure(net->parameters(), [&](const Epoch& epoch) {
      for (const auto& [tokens, ends_window] : epoch.batches) {
        // A no_sync after forward has no effect: the pass is already prepared to reduce.
        const bool synchronizes = ends_window || mode != Mode::no_sync;
        ddp.before_forward(synchronizes);
        const auto loss = loss_of(net, tokens) / context_.workload.steps();
        ddp.after_forward(synchronizes);
        loss.backward();
        if (ends_window) {
          optimizer.step();
          drop_gradients(net->parameters());
        }
      }
    });
  }

 private:
  BenchContext context_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  bool fp16_;
  std::int64_t bucket_bytes_ = c10d::kDefaultBucketBytesCap;
};

}  // namespace

std::unique_ptr<System> make_c10d_reducer_system(const BenchContext& context,
                                                 c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return std::make_unique<C10dReducerSystem>(context, std::move(group), false);
}

std::unique_ptr<System> make_c10d_fp16_system(const BenchContext& context,
                                              c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return std::make_unique<C10dReducerSystem>(context, std::move(group), true);
}

}  // namespace tutti::bench
