// Buckets are reordered after the first synchronization without any other effect.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/ranks.h"
#include "support/training.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::reordered_buckets_test {
namespace {

/// Layers that run in reverse order of registration, so that the first layers' gradients are ready first.
struct BackwardsImpl : torch::nn::Module {
  BackwardsImpl() {
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module("layer_" + std::to_string(i), torch::nn::Linear(8, 8)));
    }
    fill(*this, 5);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) x = at::tanh((*layer)->forward(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Backwards);

at::Tensor input_of(const Communicator& communicator, int round) {
  return random_tensor({3, 8}, 70 + static_cast<std::uint64_t>(round * communicator.size() + communicator.rank()));
}

void pass(Backwards& model, const at::Tensor& input) {
  model->zero_grad();
  model->forward(input).pow(2).mean().backward();
}

bool first_lies_first(const Backwards& model) {
  return model->layers.front()->weight.grad().data_ptr() < model->layers.back()->weight.grad().data_ptr();
}

ReducerOptions small_buckets(bool reorder) {
  return {.buckets = {.first_bucket_bytes = 300, .bucket_bytes = 600, .reorder = reorder}};
}

constexpr int rounds = 4;

const RankCase moves_and_keeps_bits("reordered_buckets", [](const Communicator& communicator) {
  Backwards tuned, as_registered;
  DistributedDataParallel tuned_ddp(tuned, communicator, small_buckets(true));
  DistributedDataParallel plain_ddp(as_registered, communicator, small_buckets(false));
  for (int round = 0; round < rounds; ++round) {
    pass(tuned, input_of(communicator, round));
    pass(as_registered, input_of(communicator, round));
    const auto gradients = gradients_of(*tuned), expected = gradients_of(*as_registered);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[i], expected[i])) << "round " << round << ", parameter " << i;
    }
    EXPECT_FALSE(first_lies_first(as_registered));
  }
  EXPECT_EQ(first_lies_first(tuned), communicator.size() > 1);
  EXPECT_EQ(tuned_ddp.stats().gradients_copied, plain_ddp.stats().gradients_copied);
});
TEST(ReorderedBuckets, MoveAndKeepEveryBit) {
  moves_and_keeps_bits.everywhere();
}

TEST(ReorderedBuckets, AccumulatedGradientsGoWithThem) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Backwards tuned, as_registered;
    DistributedDataParallel tuned_ddp(tuned, communicator, small_buckets(true));
    DistributedDataParallel plain_ddp(as_registered, communicator, small_buckets(false));
    // Without zero_grad(), every pass adds to the mean or to the unsynchronized gradients of the pass before.
    for (int round = 0; round < 2 * rounds; ++round) {
      const at::Tensor input = input_of(communicator, round);
      const auto tuned_alone = tuned_ddp.no_sync(round % 2 == 1);
      const auto plain_alone = plain_ddp.no_sync(round % 2 == 1);
      tuned->forward(input).pow(2).mean().backward();
      as_registered->forward(input).pow(2).mean().backward();
      EXPECT_TRUE(close(gradients_of(*tuned), gradients_of(*as_registered), 0)) << "round " << round;
    }
  });
}

TEST(ReorderedBuckets, StayWhereTheUserHoldsAViewOfAGradient) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    Backwards held;
    DistributedDataParallel held_ddp(held, communicator, small_buckets(true));
    at::Tensor view;
    {
      const auto local = held_ddp.no_sync();
      pass(held, input_of(communicator, 0));
      if (communicator.rank() == 1) view = held->layers[2]->weight.grad().view({-1});
    }
    for (int round = 1; round < 4; ++round) {
      // The loop does not call zero_grad(), after which the gradient would not share the memory of the view.
      held->forward(input_of(communicator, round)).pow(2).mean().backward();
      EXPECT_FALSE(first_lies_first(held)) << round;
      const at::Tensor now = held->layers[2]->weight.grad().view({-1});
      EXPECT_TRUE(!view.defined() || at::equal(view, now));
    }
    view.reset();
    // A task that has just ended may hold its bucket for a few more rounds.
    for (int round = 4; round < 15 && !first_lies_first(held); ++round) pass(held, input_of(communicator, round));
    EXPECT_TRUE(first_lies_first(held));
  });
}

}  // namespace
}  // namespace tutti::test::reordered_buckets_test
