#include "device/training_loops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "sync/segment.h"
#include "tutti/sync/sync_batch_norm.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test {
namespace {

constexpr std::int64_t width = 64;
constexpr int samples = 4;

const std::map<Loop, std::string>& loop_names() {
  static const std::map<Loop, std::string> names{
      {Loop::every_pass, "every_pass"}, {Loop::automatic, "automatic"}, {Loop::accumulate, "accumulate"},
      {Loop::no_sync, "no_sync"},       {Loop::join, "join"},           {Loop::checkpointing, "checkpointing"},
      {Loop::unused, "unused"},         {Loop::late, "late"},           {Loop::two_models, "two_models"},
  };
  return names;
}

const std::map<Extra, std::string>& extra_names() {
  static const std::map<Extra, std::string> names{
      {Extra::none, "none"},
      {Extra::clip_norm, "clip_norm"},
      {Extra::clip_norm_and_read, "clip_norm_and_read"},
      {Extra::clip_value, "clip_value"},
      {Extra::bf16, "bf16"},
      {Extra::fp16, "fp16"},
      {Extra::batch_norm_broadcast, "batch_norm_broadcast"},
      {Extra::batch_norm_mean, "batch_norm_mean"},
      {Extra::batch_norm_local, "batch_norm_local"},
      {Extra::sync_batch_norm, "sync_batch_norm"},
      {Extra::many_buckets, "many_buckets"},
      {Extra::metrics, "metrics"},
      {Extra::checkpoint, "checkpoint"},
      {Extra::local_sgd, "local_sgd"},
      {Extra::slowmo, "slowmo"},
      {Extra::diloco_int8, "diloco_int8"},
      {Extra::reproducible, "reproducible"},
  };
  return names;
}

template <typename Key>
std::vector<Key> keys_of(const std::map<Key, std::string>& names) {
  std::vector<Key> keys;
  for (const auto& [key, name] : names) keys.push_back(key);
  return keys;
}

bool has_batch_norm(Extra extra) {
  return extra == Extra::batch_norm_broadcast || extra == Extra::batch_norm_mean || extra == Extra::batch_norm_local;
}

bool is_local_sgd(Extra extra) {
  return extra == Extra::local_sgd || extra == Extra::slowmo || extra == Extra::diloco_int8;
}

/// 8 parameters; with a norm or an optional layer 10.
struct NetImpl : torch::nn::Module {
  NetImpl(const Training& training, const Communicator& communicator, std::uint64_t seed) : loop(training.loop) {
    in = register_module("in", torch::nn::Linear(16, width));
    if (has_batch_norm(training.extra)) batch_norm = register_module("norm", torch::nn::BatchNorm1d(width));
    if (training.extra == Extra::sync_batch_norm) {
      sync_batch_norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(width), communicator));
    }
    middle = register_module("middle", torch::nn::Linear(width, width));
    layer_norm = register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    if (loop == Loop::unused || loop == Loop::late) {
      sometimes = register_module("sometimes", torch::nn::Linear(width, width));
    }
    out = register_module("out", torch::nn::Linear(width, 1));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      parameter.copy_(at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++)) * 0.2);
    }
  }

  at::Tensor forward(const at::Tensor& x, bool uses_sometimes) {
    at::Tensor y = in->forward(x);
    if (batch_norm) y = batch_norm->forward(y);
    if (sync_batch_norm) y = sync_batch_norm->forward(y);
    y = at::gelu(y);
    y = at::gelu(loop == Loop::checkpointing ? Segment::apply(y, middle) : middle->forward(y));
    y = layer_norm->forward(y);
    if (sometimes && uses_sometimes) y = y + at::gelu(sometimes->forward(y));
    return out->forward(y);
  }

  Loop loop;
  torch::nn::Linear in{nullptr}, middle{nullptr}, sometimes{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  SyncBatchNorm sync_batch_norm{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
};
TORCH_MODULE(Net);

/// Indices of micro-batches.
struct Indices {
  std::int64_t count = 0;
  std::size_t size() const { return static_cast<std::size_t>(count); }
  std::vector<std::int64_t> get_batch(const std::vector<std::size_t>& indices) const {
    return {indices.begin(), indices.end()};
  }
};

AcceleratorOptions options_of(const Training& training, const Communicator& communicator) {
  AcceleratorOptions options{.communicator = communicator};
  const bool has_windows = training.loop != Loop::every_pass && training.loop != Loop::join;
  if (has_windows && training.extra != Extra::reproducible) options.gradient_accumulation_steps = 2;
  if (training.loop == Loop::every_pass) options.sync_policy = SyncPolicy::every_pass;
  switch (training.extra) {
    case Extra::bf16:
      options.mixed_precision = Precision::bf16;
      break;
    case Extra::fp16:
      options.mixed_precision = Precision::fp16;
      break;
    case Extra::batch_norm_mean:
      options.buffer_sync = BufferSync::mean;
      break;
    case Extra::batch_norm_local:
      options.buffer_sync = BufferSync::none;
      break;
    case Extra::many_buckets:
      options.buckets = {.first_bucket_bytes = 1024, .bucket_bytes = 4096};
      break;
    case Extra::reproducible:
      options.reproducible = ReproducibleOptions{.micro_batches = 2 * communicator.size()};
      break;
    default:
      break;
  }
  return options;
}

LocalSGDOptions local_sgd_options(Extra extra) {
  LocalSGDOptions options{.local_sgd_steps = 2};
  if (extra == Extra::slowmo) options.algorithm.outer_optimizer = OuterOptimizer::slowmo;
  if (extra == Extra::diloco_int8) {
    options.algorithm.outer_optimizer = OuterOptimizer::diloco;
    options.algorithm.wire = WireFormat::int8;
  }
  return options;
}

/// A rank's training.
class Run {
 public:
  Run(const Communicator& communicator, c10::Device device, const Training& training)
      : training_(training),
        device_(device),
        accelerator_(options_of(training, communicator)),
        net_(training, accelerator_.communicator(), 1),
        critic_(training, accelerator_.communicator(), 100) {
    net_->to(device);
    critic_->to(device);
    // A large eps: gradients that are rounding alone (a bias before a norm) must not become steps.
    const auto optimizer_options = torch::optim::AdamWOptions(0.01).eps(1e-2);
    optimizer_.emplace(
        std::get<1>(accelerator_.prepare(net_, torch::optim::AdamW(net_->parameters(), optimizer_options))));
    if (training.loop == Loop::two_models) {
      critic_optimizer_.emplace(
          std::get<1>(accelerator_.prepare(critic_, torch::optim::AdamW(critic_->parameters(), optimizer_options))));
    }
    if (is_local_sgd(training.extra)) local_sgd_.emplace(accelerator_, net_, local_sgd_options(training.extra));
  }

  std::vector<at::Tensor> operator()() {
    if (training_.loop == Loop::join) {
      train_uneven();
    } else {
      for (int step = 0; step < training_.steps; ++step) {
        training_.on_step(step);
        train_step(step);
        if (step == 1 && training_.extra == Extra::checkpoint) save_and_load();
      }
    }
    training_.on_step(training_.steps);
    if (local_sgd_) local_sgd_->finish();
    return result();
  }

 private:
  int index_of(int step, int pass) const {
    return (step * 2 + pass) * accelerator_.num_processes() + accelerator_.rank();
  }

  at::Tensor to_device(const at::Tensor& tensor) const {
    return device_.is_cpu() ? tensor : tensor.pin_memory().to(device_, /*non_blocking=*/true);
  }

  bool uses_sometimes(int step) const {
    if (training_.loop == Loop::late) return step >= 2;
    return accelerator_.rank() != 1 || step % 2 == 0;
  }

  at::Tensor loss_of(Net& net, int index, int step) {
    const at::Tensor x =
        at::randn({samples, 16}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + index)));
    const at::Tensor target = x.square().sum(1, true).sqrt();
    const at::Tensor input = to_device(x);
    at::Tensor loss = accelerator_.autocast(
        [&] { return at::mse_loss(net->forward(input, uses_sometimes(step)), to_device(target)); });
    if (training_.extra == Extra::fp16 && step == 1) loss = loss * 1e5;
    if (training_.extra == Extra::metrics) add_metrics(loss);
    return loss;
  }

  void add_metrics(const at::Tensor& loss) {
    const at::Tensor value = loss.detach().reshape({1});
    at::Tensor seen = accelerator_.gather(value).sum() + accelerator_.reduce(value, ReduceOp::mean).sum();
    if (training_.loop == Loop::join) seen = seen + accelerator_.gather_for_metrics(value).mean();
    metrics_ = metrics_.defined() ? metrics_ + seen : seen;
  }

  void train_step(int step) {
    for (int pass = 0; pass < 2; ++pass) {
      switch (training_.loop) {
        case Loop::every_pass:
          if (pass == 0) backward_and_step(index_of(step, pass), step);
          break;
        case Loop::automatic:
          backward_and_step(index_of(step, pass), step, /*steps=*/pass == 1);
          break;
        case Loop::no_sync: {
          const auto scope = accelerator_.no_sync(net_, pass == 0);
          backward_and_step(index_of(step, pass), step, /*steps=*/pass == 1);
          break;
        }
        case Loop::two_models: {
          const auto scope = accelerator_.accumulate(net_, critic_);
          backward_and_step(index_of(step, pass), step);
          accelerator_.backward(loss_of(critic_, index_of(step, pass), step));
          critic_optimizer_->step();
          critic_optimizer_->zero_grad();
          break;
        }
        default: {
          const auto scope = accelerator_.accumulate(net_);
          backward_and_step(index_of(step, pass), step);
        }
      }
    }
  }

  void train_uneven() {
    const std::int64_t ranks = accelerator_.num_processes();
    auto loader =
        accelerator_.data_loader(Indices{training_.steps * ranks - 1}, {.batch_size = 1, .even_batches = false});
    const auto scope = accelerator_.join_uneven_inputs();
    int step = 0;
    for (const std::vector<std::int64_t>& batch : loader) {
      training_.on_step(step);
      const auto window = accelerator_.accumulate(net_);
      backward_and_step(static_cast<int>(batch.at(0)), step++);
    }
  }

  void backward_and_step(int index, int step, bool steps = true) {
    accelerator_.backward(loss_of(net_, index, step));
    if (!steps) return;
    if (training_.extra == Extra::clip_norm) (void)accelerator_.clip_grad_norm_(net_, 0.5);
    if (training_.extra == Extra::clip_norm_and_read) {
      if (const auto norm = accelerator_.clip_grad_norm_(net_, 0.5)) norms_ += *norm;
    }
    if (training_.extra == Extra::clip_value) accelerator_.clip_grad_value_(net_, 0.01);
    optimizer_->step();
    optimizer_->zero_grad();
    if (local_sgd_) local_sgd_->step();
  }

  void save_and_load() {
    accelerator_.save_state({.folder = training_.folder});
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net_->parameters()) parameter.zero_();
    }
    accelerator_.load_state(training_.folder);
  }

  /// The results, on the device. The host has not waited for them.
  std::vector<at::Tensor> result() const {
    std::vector<at::Tensor> all;
    for (const Net& net : {net_, critic_}) {
      for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach());
      for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer.detach());
    }
    if (metrics_.defined()) all.push_back(metrics_ / 100);  // about 1, as tolerances expect
    if (training_.extra == Extra::clip_norm_and_read) all.push_back(at::scalar_tensor(norms_, at::kDouble));
    return all;
  }

  const Training& training_;
  const c10::Device device_;
  Accelerator accelerator_;
  Net net_;
  Net critic_;
  std::optional<Optimizer> optimizer_;
  std::optional<Optimizer> critic_optimizer_;
  std::optional<LocalSGD> local_sgd_;
  at::Tensor metrics_;
  double norms_ = 0;
};

}  // namespace

const std::vector<Loop>& all_loops() {
  static const std::vector<Loop> all = keys_of(loop_names());
  return all;
}

const std::vector<Extra>& all_extras() {
  static const std::vector<Extra> all = keys_of(extra_names());
  return all;
}

std::string name_of(Loop loop) {
  return loop_names().at(loop);
}

std::string name_of(Extra extra) {
  return extra_names().at(extra);
}

bool can_train(Loop loop, Extra extra) {
  const bool has_scopes = loop != Loop::every_pass && loop != Loop::automatic && loop != Loop::no_sync;
  if (extra == Extra::reproducible) return has_scopes && loop != Loop::join;
  if (is_local_sgd(extra)) return loop == Loop::accumulate || loop == Loop::every_pass || loop == Loop::checkpointing;
  if (extra == Extra::checkpoint) return loop != Loop::join;
  // The nested forward pass runs in backward, outside autocast().
  if (extra == Extra::bf16 || extra == Extra::fp16) return loop != Loop::checkpointing;
  return true;
}

std::vector<at::Tensor> train(const Communicator& communicator, c10::Device device, const Training& training) {
  std::vector<at::Tensor> result = Run(communicator, device, training)();
  // The Accelerator is destroyed, and the device may still work.
  for (at::Tensor& tensor : result) tensor = tensor.cpu().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  return result;
}

}  // namespace tutti::test
