#include "tutti/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tutti/core/error.h"
#include "tutti/data/data_loader.h"

namespace tutti::schedule_rule_test {
namespace {

constexpr ScheduleRule rules[] = {ScheduleRule::optimizer_step, ScheduleRule::accelerate,
                                  ScheduleRule::accelerate_micro_batch};

/// A dataset whose samples have no content.
struct Nothing {
  int samples = 0;
  int size() const { return samples; }
  int get_batch(const std::vector<std::size_t>& indices) const { return static_cast<int>(indices.size()); }
};

/// The position of a schedule after a run of `micro_batches` on rank 0: tutti's loader, a window that ends after
/// `accumulation` micro-batches and with the loader's last batch, and one Scheduler::step() per micro-batch.
std::int64_t simulate(ScheduleRule rule, const TrainingLength& length, std::int64_t accumulation, Sharding sharding,
                      std::int64_t micro_batches) {
  const SchedulePace pace{.rule = rule, .num_processes = length.num_processes};
  const auto stack = std::make_shared<LoaderStack>();
  DataLoader<Nothing> loader(Nothing{.samples = static_cast<int>(length.dataset_size)},
                             {.batch_size = length.batch_size, .sharding = sharding, .drop_last = length.drop_last}, 0,
                             static_cast<int>(length.num_processes), accumulation, stack);
  std::int64_t position = 0;
  std::int64_t in_window = 0;
  while (true) {
    for ([[maybe_unused]] const int batch : loader) {
      if (micro_batches-- == 0) return position;
      const bool ends_window = ++in_window == accumulation || stack->at_last_batch();
      if (ends_window) in_window = 0;
      position += advance(pace, ends_window);
    }
  }
}

TEST(TotalSteps, IsThePositionAtTheEndOfARun) {
  for (const std::int64_t processes : {1, 2, 3}) {
    for (const std::int64_t accumulation : {1, 2, 4}) {
      for (const std::int64_t samples : {24, 25, 31, 97}) {
        for (const bool drop_last : {false, true}) {
          TrainingLength length{.dataset_size = samples,
                                .batch_size = 2,
                                .num_processes = processes,
                                .gradient_accumulation_steps = accumulation,
                                .drop_last = drop_last};
          const auto batches = (samples + (drop_last ? 0 : 2 * processes - 1)) / (2 * processes);
          const auto check = [&](std::int64_t micro_batches) {
            for (const auto rule : rules) {
              for (const auto sharding : {Sharding::interleaved, Sharding::blocks_by_window}) {
                EXPECT_EQ(total_steps(rule, length), simulate(rule, length, accumulation, sharding, micro_batches))
                    << micro_batches << " micro-batches of " << batches << " an epoch, " << processes
                    << " processes, accumulation " << accumulation << ", rule " << static_cast<int>(rule);
              }
            }
          };
          for (const double epochs : {1.0, 1.5, 2.0, 2.25, 3.0}) {
            length.num_epochs = epochs;
            check(static_cast<std::int64_t>(std::ceil(epochs * static_cast<double>(batches))));
          }
          length.num_epochs.reset();
          for (const std::int64_t steps : {4, 9, 20, 41}) {
            length.num_steps = steps;
            check(steps);
          }
        }
      }
    }
  }
}

// ceil(samples x epochs / batch) for epochs, and steps x processes, if the data divide evenly.
TEST(TotalSteps, CountsTheMicroBatchesOfAllProcessesIfTheDataDivideEvenly) {
  for (const std::int64_t processes : {1, 2, 3}) {
    for (const std::int64_t accumulation : {1, 2, 4}) {
      TrainingLength length{.dataset_size = 480,
                            .batch_size = 5,
                            .num_processes = processes,
                            .real_batch_size = 5 * accumulation * processes,
                            .num_epochs = 3};
      EXPECT_EQ(total_steps(ScheduleRule::accelerate_micro_batch, length), 480 * 3 / 5);
      EXPECT_EQ(total_steps(ScheduleRule::optimizer_step, length), 480 * 3 / (5 * accumulation * processes));
      length.num_epochs.reset();
      length.num_steps = 40;
      length.dataset_size = 0;
      EXPECT_EQ(total_steps(ScheduleRule::accelerate_micro_batch, length), 40 * processes);
      EXPECT_EQ(total_steps(ScheduleRule::optimizer_step, length), 40 / accumulation);
      EXPECT_EQ(total_steps(ScheduleRule::accelerate, length), 40 / accumulation * processes);
    }
  }
}

TEST(TotalSteps, AFractionOfAnEpochIsRoundedUpToMicroBatches) {
  TrainingLength length{.dataset_size = 100, .batch_size = 1, .num_epochs = 1.1};  // in double slightly more than 110
  EXPECT_EQ(total_steps(ScheduleRule::optimizer_step, length), 110);
  length.num_epochs = 1.101;
  EXPECT_EQ(total_steps(ScheduleRule::optimizer_step, length), 111);
  length.num_epochs = 0.001;
  EXPECT_EQ(total_steps(ScheduleRule::optimizer_step, length), 1);
}

TEST(TotalSteps, AnOpenWindowAtTheEndHasNoStep) {
  TrainingLength length{.dataset_size = 10, .batch_size = 1, .gradient_accumulation_steps = 4, .num_epochs = 1.5};
  EXPECT_EQ(total_steps(ScheduleRule::optimizer_step, length), 3 + 1);
  EXPECT_EQ(total_steps(ScheduleRule::accelerate_micro_batch, length), 15);
  length.num_epochs = 0.3;
  EXPECT_THROW(total_steps(ScheduleRule::accelerate_micro_batch, length), UsageError);
}

TEST(GradientAccumulationSteps, FollowFromTheRealBatchSize) {
  TrainingLength length{.batch_size = 4, .num_processes = 2};
  EXPECT_EQ(gradient_accumulation_steps(length), 1);
  length.real_batch_size = 24;
  EXPECT_EQ(gradient_accumulation_steps(length), 3);
  length.gradient_accumulation_steps = 3;
  EXPECT_EQ(gradient_accumulation_steps(length), 3);
  length.real_batch_size.reset();
  EXPECT_EQ(gradient_accumulation_steps(length), 3);
}

TEST(GradientAccumulationSteps, RefuseARealBatchSizeThatIsNotDivisibleOrContradicts) {
  TrainingLength length{.batch_size = 4, .num_processes = 2, .real_batch_size = 20, .num_steps = 10};
  try {
    gradient_accumulation_steps(length);
    ADD_FAILURE() << "20 is not divisible by 8";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("divisible by batch_size 4 x num_processes 2"), std::string::npos);
  }
  EXPECT_THROW(total_steps(ScheduleRule::accelerate, length), UsageError);
  length.real_batch_size = 16;
  length.gradient_accumulation_steps = 4;
  EXPECT_THROW(gradient_accumulation_steps(length), UsageError);
}

TEST(TotalSteps, RefusesAnInvalidRun) {
  const auto refused = [](const TrainingLength& length) {
    EXPECT_THROW(total_steps(ScheduleRule::optimizer_step, length), UsageError);
  };
  refused({.dataset_size = 10});
  refused({.dataset_size = 10, .num_epochs = 1, .num_steps = 1});
  refused({.dataset_size = 0, .num_epochs = 1});
  refused({.dataset_size = -1, .num_steps = 1});
  refused({.dataset_size = 10, .num_epochs = 0});
  refused({.dataset_size = 10, .num_epochs = -1});
  refused({.dataset_size = 10, .num_epochs = std::nan("")});
  refused({.num_steps = 0});
  refused({.dataset_size = 10, .num_steps = 0});
  refused({.dataset_size = 10, .batch_size = 0, .num_epochs = 1});
  refused({.dataset_size = 10, .num_processes = 0, .num_epochs = 1});
  refused({.gradient_accumulation_steps = 0, .num_steps = 1});
  refused({.real_batch_size = 0, .num_steps = 1});
  refused({.gradient_accumulation_steps = 5, .num_steps = 4});
  refused({.dataset_size = 10, .batch_size = 11, .num_epochs = 1, .drop_last = true});
  // Too large for 64 bits.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  refused({.dataset_size = most, .batch_size = 2, .num_epochs = 1});
  refused({.dataset_size = 10'000'000'000, .num_epochs = 1e9});
  refused({.num_processes = 4, .num_steps = most / 2});
  refused({.dataset_size = 10, .real_batch_size = most, .num_steps = 1});
}

}  // namespace
}  // namespace tutti::schedule_rule_test
