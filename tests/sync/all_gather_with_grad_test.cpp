// all_gather inside a graph, compared with the graph of one process over all ranks' tensors.
#include "tutti/sync/all_gather_with_grad.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::all_gather_with_grad_test {
namespace {

at::Tensor rows_of(int rank, at::ScalarType dtype = at::kDouble) {
  return random_tensor({2, 3}, static_cast<std::uint64_t>(40 + rank), dtype);
}

/// The loss of a rank over all rows, different on each rank.
at::Tensor loss_of_rank(const at::Tensor& all, int rank) {
  return (all.matmul(all.t()) *
          random_tensor({all.size(0), all.size(0)}, static_cast<std::uint64_t>(70 + rank), all.scalar_type()))
      .pow(2)
      .sum();
}

std::vector<at::Tensor> leaves(int size) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(rows_of(rank).requires_grad_());
  return all;
}

template <typename E, typename Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_says(const std::string& message, const std::string& words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

// The gradient of a conj() is lazily conjugated too.
const RankCase conjugated("all_gather_with_grad_conjugated", [](const Communicator& communicator) {
  const AllGatherWithGrad gather(communicator);
  const auto of = [](int rank) { return at::complex(rows_of(rank), rows_of(rank + 10)).requires_grad_(); };
  const auto loss_of = [](const at::Tensor& all) {
    return at::real(all.conj() * at::complex(at::arange(3.0, at::kDouble), at::ones({3}, at::kDouble))).square().sum();
  };
  const at::Tensor mine = of(communicator.rank());
  std::vector<at::Tensor> every;
  std::vector<at::Tensor> conjugates;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    every.push_back(of(rank));
    conjugates.push_back(every.back().conj());
  }
  const at::Tensor all = gather(mine.conj());
  EXPECT_TRUE(at::equal(all, at::cat(conjugates)));
  loss_of(all).backward();
  (loss_of(at::cat(conjugates)) * communicator.size()).backward();
  EXPECT_TRUE(at::allclose(mine.grad(), every[static_cast<std::size_t>(communicator.rank())].grad()));
});
TEST(AllGatherWithGrad, SendsTheValuesOfAConjugate) {
  conjugated.on_threads({1, 2, 3});
}

const RankCase first_order("all_gather_with_grad_first_order", [](const Communicator& communicator) {
  const AllGatherWithGrad gather(communicator);
  const int rank = communicator.rank();
  const at::Tensor mine = rows_of(rank).requires_grad_();
  const at::Tensor all = gather(mine);

  const std::vector<at::Tensor> every = leaves(communicator.size());
  const at::Tensor expected = at::cat(every);
  EXPECT_TRUE(at::equal(all, expected));
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int other = 0; other < communicator.size(); ++other) sum = sum + loss_of_rank(expected, other);
  sum.backward();

  const at::Tensor loss = loss_of_rank(all, rank);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(at::allclose(mine.grad(), every[rank].grad(), 1e-12)) << mine.grad();
  loss.backward();
  EXPECT_TRUE(at::allclose(mine.grad(), 2 * every[rank].grad(), 1e-12)) << "a second time through the same graph";
});
TEST(AllGatherWithGrad, BackwardGivesTheGradientOfAllRanksLosses) {
  first_order.everywhere();
}

const RankCase second_order("all_gather_with_grad_second_order", [](const Communicator& communicator) {
  const AllGatherWithGrad gather(communicator);
  const int rank = communicator.rank();
  const at::Tensor mine = rows_of(rank).requires_grad_();
  const at::Tensor gradient =
      torch::autograd::grad({loss_of_rank(gather(mine), rank)}, {mine}, {}, true, /*create_graph=*/true)[0];
  (gradient.pow(3).sum() * (rank + 1)).backward();

  const std::vector<at::Tensor> every = leaves(communicator.size());
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int other = 0; other < communicator.size(); ++other) sum = sum + loss_of_rank(at::cat(every), other);
  const auto gradients = torch::autograd::grad({sum}, every, {}, true, /*create_graph=*/true);
  at::Tensor penalties = at::zeros({}, at::kDouble);
  for (int other = 0; other < communicator.size(); ++other) {
    penalties = penalties + gradients[other].pow(3).sum() * (other + 1);
  }
  penalties.backward();
  EXPECT_TRUE(at::allclose(mine.grad(), every[rank].grad(), 1e-9)) << mine.grad() << every[rank].grad();
});
TEST(AllGatherWithGrad, SecondDerivativesAreOfAllRanksLossesToo) {
  second_order.on_threads({1, 2, 3});
}

const RankCase shapes("all_gather_with_grad_shapes", [](const Communicator& communicator) {
  const AllGatherWithGrad gather(communicator);
  const int size = communicator.size();
  const int rank = communicator.rank();
  const at::Tensor scalar = at::full({}, rank + 1.0, at::kDouble).requires_grad_();
  const at::Tensor numbers = gather(scalar);
  EXPECT_EQ(numbers.sizes().vec(), std::vector<std::int64_t>{size});
  numbers.pow(2).sum().backward();
  EXPECT_EQ(scalar.grad().item<double>(), 2.0 * (rank + 1) * size);

  const at::Tensor strided = rows_of(rank, at::kFloat).t().requires_grad_();
  const at::Tensor columns = gather(strided);
  EXPECT_TRUE(at::equal(columns.narrow(0, 3 * rank, 3), strided));
  columns.sum().backward();
  EXPECT_TRUE(at::equal(strided.grad(), at::full({3, 2}, size, at::kFloat)));

  const at::Tensor half = at::ones({4}, at::kBFloat16).requires_grad_();
  gather(half).sum().backward();
  EXPECT_TRUE(at::equal(half.grad(), at::full({4}, size, at::kBFloat16)));

  EXPECT_EQ(gather(at::empty({0, 3})).sizes().vec(), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(gather(at::full({1}, rank, at::kLong))[size - 1].item<std::int64_t>(), size - 1);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(gather(half).requires_grad());
});
TEST(AllGatherWithGrad, TakesAnyDenseTensor) {
  shapes.on_threads({1, 2, 3});
  shapes.on_processes({2});
}

const RankCase differ("all_gather_with_grad_differ", [](const Communicator& communicator) {
  const AllGatherWithGrad gather(communicator);
  const bool last = communicator.rank() + 1 == communicator.size();
  const std::string last_rank = "rank " + std::to_string(communicator.size() - 1);
  const at::Tensor mine = at::ones({2, 2}).requires_grad_();

  std::string said = thrown<MismatchError>([&] { gather(last ? at::ones({2, 3}).requires_grad_() : mine); });
  expect_says(said, last_rank);
  expect_says(said, "[2, 3]");
  said = thrown<MismatchError>([&] { gather(last ? at::ones({2, 2}) : mine); });
  expect_says(said, "of a tensor that requires gradients");
  const auto undefined = [&] { gather(last ? at::Tensor() : mine, {.name = "texts"}); };
  said = last ? thrown<UsageError>(undefined) : thrown<MismatchError>(undefined);
  expect_says(said, "'texts': the tensor is undefined");

  // Two nodes of equal shapes, which the last rank's backward passes reach in the other order.
  const at::Tensor one = gather(mine);
  const at::Tensor other = gather(mine);
  const auto detached = [](const at::Tensor& all) { return all.detach().requires_grad_(); };
  const at::Tensor seed = detached(one);
  said = thrown<MismatchError>([&] {
    (last ? other : one).backward(seed);
    (last ? one : other).backward(seed);
  });
  expect_says(said, "all_gather_with_grad 4");
  expect_says(said, "all_gather_with_grad 5");

  const at::Tensor again = at::ones({2, 2}).requires_grad_();
  gather(again).sum().backward();
  EXPECT_TRUE(at::equal(again.grad(), at::full({2, 2}, static_cast<double>(communicator.size()), at::kFloat)));
});
TEST(AllGatherWithGrad, WhatDiffersBetweenRanksIsNamedOnAllOfThem) {
  differ.on_threads({2, 3});
  differ.on_processes({2});
}

using Gathered = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Gathers after each layer. Returns the mean loss over `inputs`.
at::Tensor deep_loss(Mlp& model, const std::vector<at::Tensor>& inputs, const Gathered& gathered) {
  std::vector<at::Tensor> hidden, outputs;
  for (const at::Tensor& x : inputs) hidden.push_back(at::tanh(model->first(x)));
  const at::Tensor all = gathered(hidden);
  for (const at::Tensor& x : hidden) outputs.push_back(model->second(x + all.mean(0)));
  const at::Tensor all_outputs = gathered(outputs);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& x : outputs) sum = sum + x.matmul(all_outputs.t()).pow(2).mean();
  return sum / static_cast<double>(inputs.size());
}

// The model's buckets are in flight at the same time, on channels of their own.
const RankCase between_buckets("all_gather_with_grad_between_buckets", [](const Communicator& communicator) {
  const AllGatherWithGrad gather(communicator);
  Mlp one(1, at::kDouble), many(1, at::kDouble);
  const DistributedDataParallel ddp(*many, communicator, {.buckets = {.first_bucket_bytes = 1, .bucket_bytes = 1}});
  for (int pass = 0; pass < 20; ++pass) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      inputs.push_back(batch_of(pass * communicator.size() + rank, at::kDouble).input);
    }
    one->zero_grad();
    many->zero_grad();
    deep_loss(one, inputs, [](const std::vector<at::Tensor>& all) { return at::cat(all); }).backward();
    deep_loss(many, {inputs[communicator.rank()]}, [&](const std::vector<at::Tensor>& own) {
      return gather(own[0]);
    }).backward();
    EXPECT_TRUE(close(gradients_of(*many), gradients_of(*one), 1e-12)) << "pass " << pass;
  }
});
TEST(AllGatherWithGrad, InTheMiddleOfAModelWhoseBucketsAreInFlight) {
  between_buckets.everywhere();
}

}  // namespace
}  // namespace tutti::test::all_gather_with_grad_test
