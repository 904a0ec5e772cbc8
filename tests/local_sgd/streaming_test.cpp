// Streaming: separate fragments, late results, mixing, and local progress that is kept.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "local_sgd/fragment_plan.h"
#include "local_sgd/local_run.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"

namespace tutti::test::streaming_test {
namespace {

at::Tensor flat(const Tensors& tensors) {
  Tensors parts;
  // In the order of memory: the transposed tensor is transposed back.
  for (const at::Tensor& tensor : tensors) {
    parts.push_back((tensor.is_contiguous() ? tensor : tensor.t()).detach().reshape({-1}));
  }
  return at::cat(parts);
}

/// The models of all ranks after `steps` steps, as flat vectors, computed as in the paper.
struct Paper {
  Paper(int size, StreamingOptions streaming, int local_steps, DiLoCoOptions outer)
      : options(streaming), length(local_steps), diloco(outer) {
    for (int rank = 0; rank < size; ++rank) models.push_back(initial_model());
    anchor = flat(models.front());
    momentum = anchor * 0;
    mean = anchor * 0;
    for (std::size_t rank = 0; rank < models.size(); ++rank) sent_from.push_back(anchor * 0);
  }

  void step() {
    const auto size = static_cast<int>(models.size());
    for (int rank = 0; rank < size; ++rank) sgd_step(models[static_cast<std::size_t>(rank)], rank, done, 0.1);
    ++done;
    for (int fragment = 0; fragment < options.fragments; ++fragment) {
      const int phase = (fragment + 1) * length / options.fragments % length;
      if (done % length == phase) {
        at::Tensor sum = anchor * 0;
        for (const Tensors& model : models) sum += flat(model) - anchor;
        part(mean, fragment).copy_(part(sum, fragment) / size);
        for (std::size_t rank = 0; rank < models.size(); ++rank) {
          part(sent_from[rank], fragment).copy_(part(flat(models[rank]), fragment));
        }
      }
      const int sent = done - static_cast<int>(options.overlap_steps);
      if (sent > 0 && sent % length == phase) apply(fragment);
    }
  }

  void apply(int fragment) {
    const at::Tensor gradient = -part(mean, fragment), m = part(momentum, fragment), x = part(anchor, fragment);
    m.copy_(diloco.momentum * m + gradient);
    x.sub_(diloco.lr * (diloco.nesterov ? gradient + diloco.momentum * m : m));
    for (std::size_t rank = 0; rank < models.size(); ++rank) {
      Tensors& model = models[rank];
      const at::Tensor all = flat(model), own = part(all, fragment);
      own.copy_(options.keep_local_progress ? x + (own - part(sent_from[rank], fragment))
                                            : options.mix * own + (1 - options.mix) * x);
      std::int64_t begin = 0;
      for (const at::Tensor& tensor : model) {
        const at::Tensor memory = tensor.is_contiguous() ? tensor : tensor.t();
        memory.copy_(all.slice(0, begin, begin + tensor.numel()).view(memory.sizes()));
        begin += tensor.numel();
      }
    }
  }

  at::Tensor part(const at::Tensor& whole, int fragment) const {
    const auto range = local_sgd::part_of(whole.numel(), fragment, options.fragments);
    return whole.slice(0, range.begin, range.begin + range.length);
  }

  StreamingOptions options;
  int length;
  DiLoCoOptions diloco;
  std::vector<Tensors> models;
  at::Tensor anchor, momentum, mean;
  std::vector<at::Tensor> sent_from;
  int done = 0;
};

const RankCase paper("streaming_paper", [](const Communicator& communicator) {
  const std::vector<StreamingOptions> all{{.fragments = 1, .overlap_steps = 2, .mix = 0},
                                          {.fragments = 1, .overlap_steps = 0, .mix = 0.25},
                                          {.fragments = 2, .overlap_steps = 0, .mix = 0},
                                          {.fragments = 3, .overlap_steps = 1, .mix = 0},
                                          {.fragments = 3, .overlap_steps = 1, .mix = 0.5},
                                          {.fragments = 6, .overlap_steps = 0, .mix = 0},
                                          {.fragments = 1, .overlap_steps = 5, .keep_local_progress = true},
                                          {.fragments = 2, .overlap_steps = 2, .keep_local_progress = true},
                                          {.fragments = 3, .overlap_steps = 0, .keep_local_progress = true}};
  for (const StreamingOptions& streaming : all) {
    SCOPED_TRACE("fragments " + std::to_string(streaming.fragments) + ", overlap " +
                 std::to_string(streaming.overlap_steps) + ", mix " + std::to_string(streaming.mix) +
                 (streaming.keep_local_progress ? ", progress kept" : ""));
    const LocalSgdAlgorithmOptions options{
        .local_steps = 6, .outer_optimizer = OuterOptimizer::diloco, .streaming = streaming};
    LocalRun run(communicator, {.updates = options});
    Paper expected(communicator.size(), streaming, 6, {});
    for (int step = 1; step <= 20; ++step) {
      run.step();
      expected.step();
      // Checked after every step, so a result is applied neither too early nor too late.
      ASSERT_LE(largest_difference(run.values(), expected.models[static_cast<std::size_t>(run.rank)]), 2e-5) << step;
    }
    run.finish();
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
    const Tensors finished = run.values();
    run.finish();
    EXPECT_TRUE(same_bits(run.values(), finished));
  }
});
TEST(Streaming, IsThePapersAlgorithmAtEveryStep) {
  paper.on_threads({1, 2, 3, 4});
  paper.on_processes({2});
}

TEST(Streaming, WithoutOverlapEachFragmentIsTrainedByDiLoCo) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    // Two algorithms without streaming over the halves of two parameters, against one with two fragments.
    const LocalSgdAlgorithmOptions plain{.local_steps = 2, .outer_optimizer = OuterOptimizer::diloco};
    const LocalSgdAlgorithmOptions streaming{
        .local_steps = 2, .outer_optimizer = OuterOptimizer::diloco, .streaming = {.fragments = 2}};
    Tensors a{at::zeros({8}), at::zeros({8})}, b{at::zeros({8}), at::zeros({8})};
    for (const Tensors* tensors : {&a, &b}) {
      for (const at::Tensor& tensor : *tensors) tensor.set_requires_grad(true);
    }
    LocalSgdAlgorithm whole({{"0", a[0]}, {"1", a[1]}}, {}, nullptr, communicator.duplicate("whole"), streaming);
    LocalSgdAlgorithm first({{"0", b[0]}}, {}, nullptr, communicator.duplicate("first"), plain);
    LocalSgdAlgorithm second({{"1", b[1]}}, {}, nullptr, communicator.duplicate("second"), plain);
    // Fragment 0 is sent after the first step, so its algorithm calls finish() there.
    const auto train = [&](const at::Tensor& tensor, int index, int step) {
      const at::NoGradGuard no_grad;
      tensor.sub_(gradient(tensor, index, communicator.rank(), step), 0.1);
    };
    for (int step = 0; step < 8; ++step) {
      for (const Tensors* tensors : {&a, &b}) {
        train((*tensors)[0], 0, step);
        train((*tensors)[1], 1, step);
      }
      whole.step();
      second.step();
      first.step();
      if (step == 0) first.finish();
      EXPECT_LE(largest_difference(a, b), 1e-6) << step;
    }
  });
}

TEST(Streaming, SendsInTheBackgroundAndAppliesLater) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 4, .streaming = {.overlap_steps = 2}}});
    run.steps(4);
    EXPECT_EQ(run.algorithm->stats().rounds, 1);
    EXPECT_FALSE(same_on_all_ranks(communicator, run.values()));
    run.steps(1);
    EXPECT_FALSE(same_on_all_ranks(communicator, run.values()));
    run.steps(1);
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
    std::vector<Tensors> models{initial_model(), initial_model()};
    for (int step = 0; step < 4; ++step) {
      for (int rank = 0; rank < 2; ++rank) sgd_step(models[static_cast<std::size_t>(rank)], rank, step, 0.1);
    }
    EXPECT_LE(largest_difference(run.values(), mean_of(models)), 1e-6);
    EXPECT_GT(run.algorithm->stats().bytes_sent, 0);
    EXPECT_GT(run.algorithm->stats().seconds_exchanging, 0);
  });
}

TEST(Streaming, FinishAveragesTheRestOfAMixedResult) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 4, .streaming = {.mix = 0.5}}});
    run.steps(4);
    EXPECT_FALSE(same_on_all_ranks(communicator, run.values()));
    run.finish();  // no step since the last average, so all weights are 0
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  });
}

}  // namespace
}  // namespace tutti::test::streaming_test
