#include "measure_work.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <sstream>
#include <vector>

#include "buckets.h"
#include "plan/figures.h"
#include "tutti/train/accelerator.h"

namespace tutti::plan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int steps_before = 3;

double ms_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// When, of a backward pass, each gradient was there.
class GradientWatch {
 public:
  explicit GradientWatch(const std::vector<at::Tensor>& parameters)
      : parameters_(parameters), came_(parameters.size()), parts_(parameters.size()) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].register_hook([this, i](const at::Tensor&) { came_[i] = Clock::now(); });
    }
  }

  void note_pass(Clock::time_point begin, Clock::time_point end) {
    for (std::size_t i = 0; i < came_.size(); ++i) {
      parts_[i].push_back(std::clamp(ms_between(begin, came_[i]) / ms_between(begin, end), 0.0, 1.0));
    }
  }

  std::vector<Gradient> gradients() const {
    std::vector<Gradient> gradients;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      gradients.push_back({.bytes = static_cast<std::int64_t>(parameters_[i].nbytes()), .ready = median(parts_[i])});
    }
    return gradients;
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<Clock::time_point> came_;
  std::vector<std::vector<double>> parts_;
};

/// The medians over ranks of what each has found.
Work agree(const Work& mine, const Communicator& together) {
  std::ostringstream text;
  write(text, mine);
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> optimizer;
  for (const auto& object : together.all_gather_object(text.str())) {
    std::istringstream in(object);
    const Work work = read_work(in);
    forward.push_back(work.forward_ms);
    backward.push_back(work.backward_ms);
    optimizer.push_back(work.optimizer_ms);
  }
  Work work = mine;
  work.forward_ms = median(forward);
  work.backward_ms = median(backward);
  work.optimizer_ms = median(optimizer);
  return work;
}

}  // namespace

Work measure_work(const Example& example, int steps, const Communicator& together) {
  // A rank of its own: what tutti does in a step, but for the exchange.
  Accelerator accelerator({.communicator = Communicator()});
  auto net = make_model(example);
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  GradientWatch watch(net->parameters());

  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> stepping;
  together.barrier().wait();
  for (int step = -steps_before; step < steps; ++step) {
    const auto begin = Clock::now();
    const auto loss = loss_of(model, example);
    const auto forward_done = Clock::now();
    accelerator.backward(loss);
    const auto backward_done = Clock::now();
    optimizer.step();
    optimizer.zero_grad();
    const auto end = Clock::now();
    if (step < 0) continue;
    watch.note_pass(forward_done, backward_done);
    forward.push_back(ms_between(begin, forward_done));
    backward.push_back(ms_between(forward_done, backward_done));
    stepping.push_back(ms_between(backward_done, end));
  }
  return agree({.forward_ms = median(forward),
                .backward_ms = median(backward),
                .optimizer_ms = median(stepping),
                .buckets = buckets_of(watch.gradients())},
               together);
}

}  // namespace tutti::plan
