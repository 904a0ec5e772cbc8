// Accelerate's test_ops.py on 1, 2 and 3 ranks, and calls that differ between ranks.
#include "tutti/train/collectives.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::collectives_test {
namespace {

using Floats = std::vector<float>;
using Shape = std::vector<std::int64_t>;

/// 1 .. size on rank 0, size + 1 .. on rank 1, and so on.
at::Tensor create_tensor(const Communicator& communicator) {
  const int size = communicator.size();
  return at::arange(size, at::kFloat) + 1.0 + size * communicator.rank();
}

Floats values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

Floats count_from_one(std::int64_t count) {
  return values(at::arange(1, count + 1, at::kFloat));
}

/// The message of the E that `call` throws.
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

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "'" << part << "' is not in: " << text;
  return false;
}

const RankCase gathers("collectives_gather", [](const Communicator& communicator) {
  const std::int64_t size = communicator.size();
  const at::Tensor mine = create_tensor(communicator);
  EXPECT_EQ(values(gather(communicator, mine)), count_from_one(size * size));

  const at::Tensor scalar = at::scalar_tensor(communicator.rank() + 1, at::kFloat);
  EXPECT_EQ(values(gather(communicator, scalar)), count_from_one(size));

  const at::Tensor rows = gather(communicator, mine.view({1, size}).expand({2, size}));
  EXPECT_EQ(rows.sizes().vec(), (Shape{2 * size, size}));
  EXPECT_EQ(values(rows[2 * size - 1]), values(create_tensor(communicator) + size * (size - 1 - communicator.rank())));
});
TEST(Gather, PutsTheRanksRowsOneAfterTheOther) {
  gathers.everywhere();
}

// The memory of a conj() and of a lazy negation does not hold their values.
const RankCase lazy_values("collectives_lazy_values", [](const Communicator& communicator) {
  const int size = communicator.size();
  const auto of = [](int rank) { return at::complex(at::arange(3.0) + rank, at::arange(3.0) + 7).conj(); };
  for (const bool negated : {false, true}) {
    const auto lazy = [&](int rank) { return negated ? at::_neg_view(at::arange(3.0) + rank) : of(rank); };
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(lazy(rank));
    const at::Tensor mine = lazy(communicator.rank());
    ASSERT_TRUE(mine.is_conj() || mine.is_neg());
    EXPECT_TRUE(at::equal(gather(communicator, mine), at::cat(all)));
    EXPECT_TRUE(at::allclose(reduce(communicator, mine, ReduceOp::sum), at::stack(all).sum(0)));
    EXPECT_TRUE(at::equal(broadcast(communicator, mine, size - 1), all.back()));
    const auto objects = gather_object(communicator, std::vector<at::Tensor>{mine});
    for (int rank = 0; rank < size; ++rank)
      EXPECT_TRUE(at::equal(objects[static_cast<std::size_t>(rank)], all[static_cast<std::size_t>(rank)]));
  }
});
TEST(Collectives, SendTheValuesOfLazyTensors) {
  lazy_values.on_threads({1, 2, 3});
}

// Every rank computes the same loss over the outputs of all ranks. The mean over ranks is the gradient of that loss.
const RankCase gathers_in_the_graph("collectives_gather_in_the_graph", [](const Communicator& communicator) {
  const auto loss_of_rows = [](const at::Tensor& rows) { return rows.matmul(rows.t()).tanh().sum(); };
  Mlp net;
  Mlp alone;
  Accelerator accelerator({.communicator = communicator});
  accelerator.prepare(net);
  for (int pass = 0; pass < 2; ++pass) {
    net->zero_grad();
    alone->zero_grad();
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < communicator.size(); ++rank) inputs.push_back(batch_of(rank).input);
    loss_of_rows(alone->forward(at::cat(inputs))).backward();

    const at::Tensor all = accelerator.all_gather_with_grad(net->forward(inputs[communicator.rank()]));
    accelerator.backward(loss_of_rows(all));
    EXPECT_TRUE(close(gradients_of(*net), gradients_of(*alone)));
  }
});
TEST(Gather, InTheGraphGivesTheGradientOfALossOverAllRanksRows) {
  gathers_in_the_graph.everywhere();
}

const RankCase gathers_strided("collectives_gather_strided", [](const Communicator& communicator) {
  const at::Tensor mine = (at::arange(6, at::kFloat) + 6 * communicator.rank()).view({2, 3}).t();
  ASSERT_FALSE(mine.is_contiguous());
  const at::Tensor all = gather(communicator, mine.requires_grad_());
  EXPECT_FALSE(all.requires_grad());
  ASSERT_EQ(all.sizes().vec(), (Shape{3 * communicator.size(), 2}));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    EXPECT_TRUE(all.narrow(0, 3 * rank, 3).equal((at::arange(6, at::kFloat) + 6 * rank).view({2, 3}).t()));
  }
});
TEST(Gather, TakesTensorsThatAreNotContiguous) {
  gathers_strided.on_threads({1, 2, 3});
}

const RankCase gathers_large("collectives_gather_large", [](const Communicator& communicator) {
  const std::int64_t rows = 100'000;  // more than the inline payload of a call
  const at::Tensor all = gather(communicator, at::full({rows, 2}, communicator.rank(), at::kShort));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    EXPECT_TRUE(all.narrow(0, rank * rows, rows).eq(rank).all().item<bool>());
  }
  EXPECT_EQ(gather(communicator, at::empty({0, 3})).sizes().vec(), (Shape{0, 3}));
});
TEST(Gather, TakesLargeAndEmptyTensors) {
  gathers_large.on_threads({1, 2, 3});
  gathers_large.on_processes({2});
}

using Outputs = std::map<std::string, std::pair<at::Tensor, std::vector<at::Tensor>>>;

const RankCase gathers_nested("collectives_gather_nested", [](const Communicator& communicator) {
  const int rank = communicator.rank();
  const at::Tensor mine = create_tensor(communicator);
  const Outputs outputs{{"a", {mine, {mine + 1, mine + 2}}}, {"b", {at::full({1}, rank, at::kLong), {}}}};
  const Outputs all = gather(communicator, outputs);
  EXPECT_EQ(values(all.at("a").second.at(1)), values(gather(communicator, mine) + 2));
  EXPECT_TRUE(all.at("b").first.equal(at::arange(communicator.size(), at::kLong)));
  EXPECT_TRUE(all.at("b").second.empty());

  const auto [first, maybe, example] =
      gather(communicator,
             std::tuple(std::array{mine, mine}, std::optional<at::Tensor>(), torch::data::Example<>(mine, mine)));
  EXPECT_EQ(values(first[1]), count_from_one(communicator.size() * communicator.size()));
  EXPECT_FALSE(maybe.has_value());
  EXPECT_EQ(values(example.target), values(first[0]));
});
TEST(Gather, KeepsNestedStructures) {
  gathers_nested.on_threads({1, 2, 3});
}

const RankCase differ("collectives_differ", [](const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const bool last = communicator.rank() + 1 == communicator.size();
  const std::string last_rank = "rank " + std::to_string(communicator.size() - 1);
  const auto refused = [&](const auto& call) {
    const std::string why = thrown<MismatchError>(call);
    EXPECT_TRUE(contains(why, last_rank));
    return why;
  };
  using Map = std::map<std::string, at::Tensor>;
  const at::Tensor mine = create_tensor(communicator);
  // test_gather / test_reduce ... with other shapes on one rank: an error on all ranks.
  const at::Tensor longer = last ? at::ones({7}) : at::ones({3});
  const std::string why = refused([&] { return gather(communicator, Map{{"loss", mine}, {"logits", longer}}); });
  EXPECT_TRUE(contains(why, "['logits'] float [7]"));
  EXPECT_TRUE(contains(why, "['logits'] float [3]"));
  // Each message ends with the remedy for its difference.
  const auto ends = [](const std::string& message, const std::string& remedy) {
    EXPECT_TRUE(message.ends_with("Nothing was exchanged. " + remedy)) << message;
  };
  ends(why, "Use pad_across_processes() to make sizes equal, or gather_object() for any sizes");
  ends(refused([&] { return reduce(communicator, longer); }), "Use pad_across_processes() to make sizes equal");
  ends(refused([&] { return broadcast(communicator, longer); }), "Use pad_across_processes() to make sizes equal");
  ends(refused([&] { return pad_across_processes(communicator, last ? mine : mine.unsqueeze(0)); }),
       "Pass tensors with the same number of dimensions on all ranks");
  ends(refused([&] { return gather(communicator, last ? mine.to(at::kDouble) : mine); }),
       "Convert the tensor to one dtype on all ranks");
  ends(refused([&] { return gather(communicator, last ? at::Tensor() : mine); }), "Pass a dense tensor on all ranks");
  ends(refused([&] { return gather(communicator, last ? mine.to_sparse() : mine); }),
       "Pass a dense tensor on all ranks");
  // Other structures: no further tensor, another key.
  const std::string shorter =
      refused([&] { return gather(communicator, std::vector<at::Tensor>(last ? 1 : 2, mine)); });
  EXPECT_TRUE(contains(shorter, "no further tensor"));
  ends(shorter, "Pass the same structure on all ranks");
  ends(refused([&] {
         return gather(communicator, Map{{last ? "b" : "a", mine}});
       }),
       "Pass the same structure on all ranks");
  // Other arguments, another function.
  refused([&] { return reduce(communicator, mine, last ? ReduceOp::max : ReduceOp::sum); });
  refused([&] { return reduce(communicator, mine, ReduceOp::sum, last ? 0.5 : 1.0); });
  refused([&] { return broadcast(communicator, mine, last ? 1 : 0); });
  refused([&] { return pad_across_processes(communicator, mine, {.pad_index = last ? 1.0 : 0.0}); });
  refused([&] { return last ? gather(communicator, mine) : reduce(communicator, mine); });
  refused([&] { return gather_object(communicator, std::vector<int>{last ? 1 : 2}, {.name = last ? "a" : "b"}); });
  refused([&] { return broadcast(communicator, mine, last ? 99 : 0); });
  refused([&] { return broadcast_object(communicator, 1, last ? 99 : 0); });
  if (last) {
    refused([&] { return broadcast_object(communicator, std::string()); });
  } else {
    refused([&] { return broadcast_object(communicator, 1); });
  }
  // The communicator is usable after the errors.
  EXPECT_EQ(values(gather(communicator, mine)), count_from_one(communicator.size() * communicator.size()));
});
TEST(Collectives, WhatDiffersIsAMismatchErrorOnAllRanks) {
  differ.everywhere();
}

const RankCase unusable("collectives_unusable", [](const Communicator& communicator) {
  const at::Tensor whole = at::ones({2}, at::kLong);
  EXPECT_THROW((void)gather(communicator, at::Tensor()), UsageError);
  EXPECT_THROW((void)gather(communicator, at::ones({2}).to_sparse()), UsageError);
  EXPECT_THROW((void)reduce(communicator, whole, ReduceOp::mean), UsageError);
  EXPECT_THROW((void)reduce(communicator, whole, ReduceOp::sum, 0.5), UsageError);
  EXPECT_THROW((void)reduce(communicator, at::ones({2}, at::kComplexFloat), ReduceOp::max), UsageError);
  EXPECT_THROW((void)broadcast(communicator, whole, communicator.size()), UsageError);
  EXPECT_THROW((void)broadcast_object(communicator, 1, -1), UsageError);
  // An error of one rank alone is an error on all ranks too.
  const bool last = communicator.rank() + 1 == communicator.size();
  const std::vector<at::Tensor> objects{last ? at::ones({2}).to_sparse() : at::ones({2})};
  EXPECT_THROW((void)gather_object(communicator, objects), UsageError);
  EXPECT_THROW((void)broadcast_object(communicator, objects, communicator.size() - 1), UsageError);
  communicator.barrier().wait();
});
TEST(Collectives, ATensorThatIsNotDenseIsAnErrorOnAllRanks) {
  unusable.on_threads({1, 2, 3});
}

const RankCase reduces("collectives_reduce", [](const Communicator& communicator) {
  const int size = communicator.size();
  const at::Tensor mine = create_tensor(communicator);
  const at::Tensor before = mine.clone();
  const at::Tensor every = gather(communicator, mine).view({size, size});
  EXPECT_TRUE(reduce(communicator, mine).equal(every.sum(0)));
  EXPECT_TRUE(reduce(communicator, mine, ReduceOp::mean).allclose(every.mean(0)));
  EXPECT_TRUE(reduce(communicator, mine, ReduceOp::max).equal(every.amax(0)));
  EXPECT_TRUE(reduce(communicator, mine, ReduceOp::min).equal(every.amin(0)));
  EXPECT_TRUE(reduce(communicator, mine, ReduceOp::mean, 0.5).allclose(every.mean(0) / 2));
  EXPECT_TRUE(mine.equal(before));
  if (size == 2) {
    EXPECT_EQ(values(reduce(communicator, mine, ReduceOp::sum)), (Floats{4, 6}));
    EXPECT_EQ(values(reduce(communicator, mine, ReduceOp::mean)), (Floats{2, 3}));
    EXPECT_EQ(values(reduce(communicator, mine, ReduceOp::max)), (Floats{3, 4}));
  }
  EXPECT_EQ(reduce(communicator, at::ones({}, at::kLong)).item<int>(), size);
  const auto [sum, strided] = reduce(communicator, std::pair(mine, at::ones({2, 3}).t()));
  EXPECT_TRUE(sum.equal(every.sum(0)));
  EXPECT_TRUE(strided.equal(at::full({3, 2}, size, at::kFloat)));
});
TEST(Reduce, CombinesAndLeavesItsArgumentAlone) {
  reduces.everywhere();
}

const RankCase pads("collectives_pad", [](const Communicator& communicator) {
  const int size = communicator.size();
  const bool main = communicator.rank() == 0;
  const at::Tensor mine = at::arange(main ? size + 1 : size, at::kFloat);
  const at::Tensor padded = pad_across_processes(communicator, mine);
  ASSERT_EQ(padded.sizes().vec(), (Shape{size + 1}));
  EXPECT_TRUE(padded.narrow(0, 0, mine.size(0)).equal(mine));
  if (!main) {
    EXPECT_EQ(padded[size].item<float>(), 0);
  }

  const at::Tensor first = pad_across_processes(communicator, mine, {.pad_index = -7, .pad_first = true});
  ASSERT_EQ(first.size(0), size + 1);
  EXPECT_TRUE(first.narrow(0, size + 1 - mine.size(0), mine.size(0)).equal(mine));
  if (!main) {
    EXPECT_EQ(first[0].item<float>(), -7);
  }

  // Other dimensions may have any size. A tensor without the dimension is returned unchanged.
  const at::Tensor table = at::ones({communicator.rank() + 1, communicator.rank() + 2}, at::kLong);
  const auto [wide, scalar] =
      pad_across_processes(communicator, std::pair(table, at::scalar_tensor(3.0)), {.dim = -1, .pad_index = 9});
  EXPECT_EQ(wide.sizes().vec(), (Shape{communicator.rank() + 1, size + 1}));
  EXPECT_EQ(wide.sum().item<int>(), table.numel() + 9 * (wide.numel() - table.numel()));
  EXPECT_EQ(scalar.item<float>(), 3);
  EXPECT_EQ(gather(communicator, pad_across_processes(communicator, wide)).sizes().vec(),
            (Shape{size * size, size + 1}));
});
TEST(PadAcrossProcesses, FillsUpToTheLongest) {
  pads.everywhere();
}

const RankCase broadcasts("collectives_broadcast", [](const Communicator& communicator) {
  const int size = communicator.size();
  const at::Tensor mine = create_tensor(communicator);
  const at::Tensor before = mine.clone();
  EXPECT_EQ(values(broadcast(communicator, mine)), count_from_one(size));
  const std::vector<std::map<std::string, at::Tensor>> nested{{{"a", mine}}, {{"b", mine.t()}, {"c", mine.sum()}}};
  const auto received = broadcast(communicator, nested, size - 1);
  EXPECT_EQ(values(received[0].at("a")), values(received[1].at("b")));
  EXPECT_EQ(received[1].at("b")[0].item<float>(), 1.0F + static_cast<float>(size * (size - 1)));
  EXPECT_EQ(received[1].at("c").dim(), 0);
  EXPECT_TRUE(mine.equal(before));
});
TEST(Broadcast, GivesWhatOneRankHas) {
  broadcasts.everywhere();
}

const RankCase objects("collectives_objects", [](const Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  // The number of objects and the shapes of their tensors differ between ranks.
  using Object = std::tuple<std::string, std::vector<int>, at::Tensor>;
  std::vector<Object> mine;
  for (int i = 0; i <= rank; ++i)
    mine.emplace_back("rank " + std::to_string(rank), std::vector(i, rank), at::ones({i}));
  const auto all = gather_object(communicator, mine);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(size * (size + 1) / 2));
  const auto& [name, numbers, tensor] = all.back();
  EXPECT_EQ(name, "rank " + std::to_string(size - 1));
  EXPECT_EQ(numbers, std::vector(size - 1, size - 1));
  EXPECT_EQ(tensor.sizes().vec(), (Shape{size - 1}));

  using Map = std::map<std::string, std::optional<double>>;
  const Map one{{"rank", rank}, {"none", std::nullopt}};
  EXPECT_EQ(broadcast_object(communicator, one, size - 1), (Map{{"rank", size - 1}, {"none", std::nullopt}}));

  Accelerator accelerator({.communicator = communicator});
  std::vector<std::string> list(static_cast<std::size_t>(rank), "other");
  if (rank == 0) list = {"a", "b"};
  accelerator.broadcast_object_list(list);
  EXPECT_EQ(list, (std::vector<std::string>{"a", "b"}));
});
TEST(Objects, AreGatheredAndBroadcast) {
  objects.everywhere();
}

TEST(Objects, PackWhatTheyAre) {
  enum class Color : std::uint8_t { red = 3 };
  const auto same = [](const auto& object) { return unpack<std::decay_t<decltype(object)>>(pack(object)) == object; };
  EXPECT_TRUE(same(std::pair(true, -1.5)));
  EXPECT_TRUE(same(std::vector<bool>{true, false}));
  EXPECT_TRUE(same(std::array{Color::red}));
  EXPECT_TRUE(same(std::tuple(std::string("a\0b", 3), std::map<int, std::string>{{1, ""}}, std::optional<int>())));
  const at::Tensor tensor = at::arange(6, at::kBFloat16).view({2, 3}).t();
  EXPECT_TRUE(unpack<at::Tensor>(pack(tensor)).equal(tensor));
  EXPECT_FALSE(unpack<at::Tensor>(pack(at::Tensor())).defined());
  EXPECT_EQ(detail::ObjectCodec<decltype(std::map<std::string, std::vector<float>>())>::name(),
            "map<string, vector<float32>>");
}

TEST(Objects, RefuseBytesThatAreTooFewOrTooMany) {
  const std::string bytes = pack(std::pair(std::string("abc"), std::vector<int>{1, 2}));
  using Object = std::pair<std::string, std::vector<int>>;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(unpack<Object>(bytes.substr(0, length)), UsageError) << length;
  }
  EXPECT_THROW(unpack<Object>(bytes + 'x'), UsageError);
  const std::string tensor = pack(at::ones({2}));
  EXPECT_THROW(unpack<at::Tensor>(tensor.substr(0, tensor.size() - 1)), UsageError);
}

}  // namespace
}  // namespace tutti::test::collectives_test
