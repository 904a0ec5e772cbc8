// The metrics of the Trainer: their sums over micro-batches and ranks, and the log.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "device/devices.h"
#include "device/foreach.h"
#include "device/side_stream.h"
#include "train/accelerator_state.h"
#include "train/stop_signal.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/sync/distributed_data_parallel.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

void TrainerContext::count(const at::Tensor& loss, double weight, std::int64_t samples, std::int64_t tokens) {
  if (!devices::is_accelerator(loss.device())) {
    sums_.loss += loss.item<double>();
    sums_.has_host_loss = true;
  } else {
    const at::Tensor value = loss.detach().reshape({}).to(at::kFloat);  // some devices have no double
    at::Tensor& sum = sums_.device_loss;
    sum = sum.defined() ? sum + value : value.clone();
  }
  sums_.weight += weight;
  sums_.samples += samples;
  sums_.tokens += tokens;
}

void TrainerContext::reduce_metrics(double batches_read) {
  // One small all-reduce per step, with the values that must be equal on all ranks, including requests to stop.
  const bool signal = signal_ && signal_->received();
  // 0: all on the CPU, 1: all on an accelerator, 0.5: some on each.
  const double where_losses_are = !sums_.device_loss.defined() ? 0.0 : sums_.has_host_loss ? 0.5 : 1.0;
  const bool last_step =
      options_.max_epochs && epoch() + 1 >= *options_.max_epochs && accelerator_.state_->loader_stack->at_last_batch();
  const at::Tensor totals =
      at::tensor({sums_.loss, sums_.weight, static_cast<double>(sums_.samples), static_cast<double>(sums_.tokens),
                  signal ? 1.0 : 0.0, stop_requested_ ? 1.0 : 0.0, where_losses_are, last_step ? 1.0 : 0.0},
                 at::kDouble);
  clock_.measure(Stage::waiting, [&] {
    accelerator_.communicator().all_reduce(totals, ReduceOp::sum, comm::internal_call("step metrics")).wait();
  });
  const auto* total = totals.const_data_ptr<double>();
  signal_received_ = total[4] > 0;
  stop_requested_ = total[5] > 0;
  last_step_ = total[7] == accelerator_.num_processes();

  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(step_began_, now)).count();
  const double waited = accelerator_.stats().seconds_waiting;
  metrics_.loss = reduce_loss(total[0], total[1], total[6]);
  metrics_.samples_per_second = total[2] / seconds;
  metrics_.tokens_per_second = total[3] / seconds;
  metrics_.seconds_waiting = waited - std::exchange(waited_before_, waited);
  metrics_.epoch = static_cast<double>(epoch());
  if (batches_per_epoch_.value_or(0) > 0) {
    metrics_.epoch += std::min(1.0, batches_read / static_cast<double>(*batches_per_epoch_));
  }
}

/// Losses on accelerators are added there and not read.
LateValue TrainerContext::reduce_loss(double host_loss, double weight, double where_losses_are) {
  device_loss_.reset();
  if (where_losses_are == 0) return host_loss / weight;
  const auto& communicator = accelerator_.communicator();
  if (where_losses_are < communicator.size()) {
    const double here = sums_.device_loss.defined() ? sums_.device_loss.item<double>() : 0;
    const at::Tensor rest = at::scalar_tensor(here, at::kDouble);
    communicator.all_reduce(rest, ReduceOp::sum, comm::internal_call("losses on accelerators")).wait();
    return (host_loss + rest.item<double>()) / weight;
  }
  DeviceLoss& loss = device_loss_.emplace();
  loss.weight = weight;
  loss.sum = sums_.device_loss;
  if (communicator.size() == 1) return loss.mean();
  loss.sum = loss.sum.clone();
  loss.all_reduce = communicator.all_reduce(loss.sum, ReduceOp::sum, comm::internal_call("losses on accelerators"));
  return LateValue::deferred([loss = loss] {
    // Does not wait for work that the program has queued since.
    double mean = 0;
    devices::SideStream(loss.sum.device()).run([&] { mean = loss.mean(); });
    return mean;
  });
}

LateValue TrainerContext::DeviceLoss::mean() const {
  all_reduce.wait();
  return LateValue(sum).then([weight = weight](double total) { return total / weight; });
}

LateValue TrainerContext::local_loss() const {
  if (!sums_.device_loss.defined()) return sums_.loss;
  return LateValue(sums_.device_loss).then([host = sums_.loss](double there) { return host + there; });
}

void TrainerContext::log_metrics() {
  logged_step_ = global_step();
  // The values are queued one after the other, so reading the last one first waits once.
  const LateValue weights = weight_norm();
  if (device_loss_) metrics_.loss = device_loss_->mean();
  shown_loss_ = metrics_.loss;
  metrics_.weight_norm = weights;
  const int ranks = accelerator_.num_processes();
  const at::Tensor seconds = at::zeros({ranks, static_cast<std::int64_t>(stage_names.size())}, at::kDouble);
  const StageSeconds spent = clock_.take();
  for (std::size_t stage = 0; stage < spent.size(); ++stage) {
    seconds[accelerator_.rank()][static_cast<std::int64_t>(stage)] = spent[stage];
  }
  accelerator_.communicator().all_reduce(seconds, ReduceOp::sum, comm::internal_call("stage times")).wait();

  Scalars scalars{{"loss", metrics_.loss},
                  {"lr", metrics_.learning_rate},
                  {"grad_norm", metrics_.grad_norm_pre_clip},
                  {"grad_norm_post_clip", metrics_.grad_norm_post_clip},
                  {"weight_norm", *metrics_.weight_norm},
                  {"epoch", metrics_.epoch}};
  if (metrics_.samples_per_second > 0) scalars.emplace_back("samples_per_second", metrics_.samples_per_second);
  if (metrics_.tokens_per_second > 0) scalars.emplace_back("tokens_per_second", metrics_.tokens_per_second);
  if (has_loss_scaler()) scalars.emplace_back("loss_scale", accelerator_.loss_scale());
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t stage = 0; stage < stage_names.size(); ++stage) {
      std::string name = "time/rank_" + std::to_string(rank) + "/";
      name += stage_names[stage];
      scalars.emplace_back(name, seconds[rank][static_cast<std::int64_t>(stage)].item<double>());
    }
  }
  log(std::move(scalars));
}

void TrainerContext::log(Scalars scalars) {
  trigger(&Callback::on_log_start, scalars);
  if (accelerator_.state_->tracked_run) accelerator_.log(scalars, global_step());
  trigger(&Callback::on_log_end, scalars);
}

LateValue TrainerContext::weight_norm() const {
  const at::NoGradGuard no_grad;
  double squares = 0;
  std::vector<at::Tensor> on_devices;
  for (const NamedParameter& named : named_parameters_of(*module_)) {
    const at::Tensor& parameter = named.tensor;
    if (!parameter.requires_grad()) continue;
    if (devices::is_accelerator(parameter.device())) {
      on_devices.push_back(parameter.detach());
      continue;
    }
    // linalg_vector_norm() refuses a real dtype for complex numbers.
    const at::Tensor sizes = parameter.is_complex() ? parameter.abs() : parameter;
    const double norm = at::linalg_vector_norm(sizes, 2, at::OptionalIntArrayRef(), false, at::kDouble).item<double>();
    squares += norm * norm;
  }
  if (on_devices.empty()) return std::sqrt(squares);
  return LateValue(devices::norm_of(on_devices, 2)).then([squares](double norm) {
    return std::sqrt(squares + norm * norm);
  });
}

}  // namespace tutti
