// Accelerate's test_sync.py over its 80 samples in batches of 16, cases 4 to 6, on 1, 2 and 3 ranks. The reference is
// one process that reads the batches of all ranks.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstring>

#include "support/rank_case.h"
#include "support/training.h"
#include "train/training_run.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/dispatch_batches.h"

namespace tutti::test::accelerate_sync_test {
namespace {

using Numbers = std::vector<std::size_t>;

/// A dataset whose samples are their numbers.
struct Places {
  std::size_t count = 80;
  Numbers get_batch(const Numbers& indices) const { return indices; }
  std::size_t size() const { return count; }
};

/// The same samples as a stream of rank 0. The streams of other ranks are empty.
class Stream {
 public:
  explicit Stream(std::size_t count) : count_(count) {}
  std::optional<Numbers> get_batch(std::size_t batch_size) {
    Numbers batch;
    while (batch.size() < batch_size && next_ < count_) batch.push_back(next_++);
    return batch.empty() ? std::nullopt : std::optional(batch);
  }
  void reset() { next_ = 0; }

 private:
  std::size_t count_;
  std::size_t next_ = 0;
};

at::Tensor loss_over(Mlp& model, const Numbers& numbers) {
  const Batch batch = Samples().get_batch(numbers);
  return loss_of(model->forward(batch.input), batch.target);
}

/// One process that reads the micro-batches of all ranks.
class Reference {
 public:
  explicit Reference(const Communicator& communicator) : communicator_(communicator) {}

  /// Reads this rank's micro-batch and those of the other ranks.
  void read(const Numbers& numbers) {
    std::string bytes(numbers.size() * sizeof(std::size_t), '\0');
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    for (const auto& object : communicator_.all_gather_object(bytes)) {
      window_.emplace_back(object.size() / sizeof(std::size_t));
      std::memcpy(window_.back().data(), object.data(), object.size());
    }
  }
  /// The gradient of the mean over the micro-batches since the last end_window().
  void backward() {
    model->zero_grad();
    for (const auto& numbers : window_) {
      (loss_over(model, numbers) / static_cast<double>(window_.size())).backward();
    }
  }
  std::size_t micro_batches() const { return window_.size(); }
  void end_window() { window_.clear(); }

  Mlp model;

 private:
  const Communicator& communicator_;
  std::vector<Numbers> window_;
};

struct Case {
  bool split_batches = false;
  bool dispatch = false;
  bool sync_each_batch = false;
};

void check_gradients(const Communicator& communicator, const Case& which) {
  SCOPED_TRACE(std::string(which.split_batches ? "split_batches " : "") + (which.dispatch ? "dispatch " : "") +
               (which.sync_each_batch ? "sync_each_batch" : ""));
  Accelerator accelerator({.gradient_accumulation_plugin =
                               GradientAccumulationPlugin{.num_steps = 2, .sync_each_batch = which.sync_each_batch},
                           .communicator = communicator});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Reference reference(communicator);
  torch::optim::SGD reference_sgd(reference.model->parameters(), 0.1);
  const std::int64_t batch_size = which.split_batches && communicator.size() == 3 ? 15 : 16;  // divisible by 3 ranks
  const std::int64_t all = batch_size * (which.split_batches ? 1 : communicator.size());
  const std::int64_t micro_batches = (80 + all - 1) / all;
  std::int64_t step = 0;
  const auto train = [&](auto loader) {
    for (const Numbers& own : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(loss_over(model, own));
      reference.read(own);
      reference.backward();
      const bool last = ++step % 2 == 0 || step == micro_batches;
      EXPECT_EQ(accelerator.sync_gradients(), last) << "step " << step;
      EXPECT_EQ(close(gradients_of(*model), gradients_of(*reference.model)),
                last || which.sync_each_batch || reference.micro_batches() == 1)
          << "step " << step;
      optimizer.step();
      optimizer.zero_grad();
      if (!last) continue;
      reference_sgd.step();
      reference.end_window();
    }
  };
  if (which.dispatch) {
    DispatchedStream stream(Stream(communicator.rank() == 0 ? 80 : 0), communicator);
    train(accelerator.data_loader(std::move(stream), {.batch_size = batch_size, .split_batches = which.split_batches}));
  } else {
    train(accelerator.data_loader(Places(), {.batch_size = batch_size, .split_batches = which.split_batches}));
  }
  EXPECT_EQ(step, micro_batches);
}

const RankCase gradients("accelerate_sync_gradients", [](const Communicator& communicator) {
  for (const bool split_batches : {false, true}) {
    for (const bool dispatch : {false, true}) {
      for (const bool sync_each_batch : {false, true}) {
        check_gradients(communicator, {split_batches, dispatch, sync_each_batch});
      }
    }
  }
});
TEST(AccelerateSync, GradientsAreTheReferencesWhereTheWindowEnds) {
  gradients.everywhere();
}

// Accelerate's rule moves the schedule by the number of ranks, tutti's rule by one.
void check_schedule(const Communicator& communicator, ScheduleRule rule) {
  constexpr double rate = 1e-3;
  const auto decays = [](std::int64_t position) { return std::pow(0.65, static_cast<double>(position)); };
  Accelerator accelerator(
      {.gradient_accumulation_plugin = GradientAccumulationPlugin{.num_steps = 2, .schedule_rule = rule},
       .communicator = communicator});
  Mlp net;
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), rate), LrSchedule(decays));
  Reference reference(communicator);
  torch::optim::AdamW adamw(reference.model->parameters(), rate);
  const int stride = rule == ScheduleRule::accelerate ? communicator.size() : 1;
  auto loader = accelerator.data_loader(Places(), {.batch_size = 16});
  for (int epoch = 0, updates = 0; epoch < 2; ++epoch) {
    for (const Numbers& own : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(loss_over(model, own));
      reference.read(own);
      optimizer.step();
      scheduler.step();
      if (accelerator.sync_gradients()) {
        reference.backward();
        adamw.step();
        reference.end_window();
        const double next = rate * decays(stride * ++updates);
        static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[0].options()).lr(next);
      }
      EXPECT_DOUBLE_EQ(optimizer.learning_rate(), rate * decays(stride * updates));
      optimizer.zero_grad();
    }
  }
  EXPECT_TRUE(close(model->parameters(), reference.model->parameters(), 1e-5));
}

const RankCase schedule("accelerate_sync_schedule", [](const Communicator& communicator) {
  check_schedule(communicator, ScheduleRule::optimizer_step);
  check_schedule(communicator, ScheduleRule::accelerate);
});
TEST(AccelerateSync, RatesAndParametersAreTheReferences) {
  schedule.everywhere();
}

// Every second inner loop is left early. The end of the inner loop's data does not end windows in the outer loop.
const RankCase nested("accelerate_sync_nested", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net_a;
  Mlp net_b(2);
  auto [a, optimizer_a] = accelerator.prepare(net_a, torch::optim::SGD(net_a->parameters(), 0.1));
  auto [b, optimizer_b] = accelerator.prepare(net_b, torch::optim::SGD(net_b->parameters(), 0.1));
  const auto ranks = static_cast<std::size_t>(communicator.size());
  auto outer = accelerator.data_loader(Places{80 * ranks}, {.batch_size = 16});
  auto inner = accelerator.data_loader(Places{48 * ranks}, {.batch_size = 16});
  const auto train = [&accelerator](Mlp& model, Optimizer& optimizer, const Numbers& own) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(loss_over(model, own));
    optimizer.step();
    optimizer.zero_grad();
    return accelerator.sync_gradients();
  };
  std::vector<bool> outside;
  std::vector<bool> inside;
  for (const Numbers& own : outer) {
    const bool leave = outside.size() % 2 == 1;
    for (const Numbers& nested_own : inner) {
      inside.push_back(train(b, optimizer_b, nested_own));
      if (leave && inside.back()) break;
    }
    outside.push_back(train(a, optimizer_a, own));
  }
  EXPECT_EQ(outside, (std::vector<bool>{false, true, false, true, true}));
  EXPECT_EQ(inside,
            (std::vector<bool>{false, true, true, false, true, false, true, true, false, true, false, true, true}));
});
TEST(AccelerateSync, NestedLoopsKnowTheirOwnEnds) {
  nested.everywhere();
}

}  // namespace
}  // namespace tutti::test::accelerate_sync_test
