// Embeddings with sparse(true) train as on one process, and ranks send only the rows that were used.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstring>

#include "support/ranks.h"
#include "support/training.h"
#include "sync/sparse_rows.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::sparse_gradients_test {
namespace {

constexpr std::int64_t table_rows = 50;

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse)
      : table(
            register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(table_rows, 4).sparse(sparse)))),
        out(register_module("out", torch::nn::Linear(4, 3))) {
    fill(*this, 5);
  }
  at::Tensor loss(std::int64_t micro_batch) {
    // Several micro-batches use the same rows. One micro-batch uses a row twice.
    const at::Tensor words = at::tensor({micro_batch, micro_batch + 3, std::int64_t{7}, std::int64_t{7}});
    return out(table(words)).square().mean();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Words);

struct WordsRun {
  WordsRun(const Communicator& communicator, bool sparse, const ReducerOptions& options = {})
      : words(sparse),
        reducer(std::make_shared<Reducer>(named_parameters_of(*words), communicator.duplicate("words"), options)),
        optimizer(std::make_shared<torch::optim::SGD>(words->parameters(), 0.5), reducer) {}

  /// Runs micro-batches [first, first + count) of this rank and a step.
  void step(std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i) words->loss(i).backward();
    optimizer.step();
    optimizer.zero_grad();
  }

  Words words;
  std::shared_ptr<Reducer> reducer;
  Optimizer optimizer;
};

TEST(SparseRows, AreTheValuesOfAConjugate) {
  const at::Tensor rows = at::tensor({std::int64_t{1}, std::int64_t{3}}).view({1, 2});
  const at::Tensor values = at::complex(random_tensor({2, 4}, 1), random_tensor({2, 4}, 2)).conj();
  const auto packed = [&](const at::Tensor& of) {
    return sync::pack_rows(at::sparse_coo_tensor(rows, of, {5, 4})._coalesced_(true));
  };
  EXPECT_EQ(packed(values), packed(values.resolve_conj()));
}

class SparseGradients : public testing::TestWithParam<int> {};  // the number of ranks

TEST_P(SparseGradients, TrainAsDenseOnesDo) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun sparse(communicator, true);
    WordsRun dense(communicator, false);
    for (std::int64_t step = 0; step < 5; ++step) {
      const std::int64_t first = (step * communicator.size() + communicator.rank()) * 2;
      sparse.step(first, 2);
      dense.step(first, 2);
    }
    EXPECT_TRUE(close(sparse.words->parameters(), dense.words->parameters()));
  });
}

TEST_P(SparseGradients, ZerosThatTheModuleLeavesCountAsCleared) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun zeroed(communicator, true);
    WordsRun cleared(communicator, true);
    for (std::int64_t step = 0; step < 4; ++step) {
      for (WordsRun* run : {&zeroed, &cleared}) {
        const AccumulateScope scope({{.reducer = run->reducer, .step = {.syncs = true}}});
        run->words->loss(step * communicator.size() + communicator.rank()).backward();
        run->reducer->add_scope_weight();
        run->optimizer.step();
        run == &zeroed ? run->words->zero_grad(/*set_to_none=*/false) : run->optimizer.zero_grad();
      }
    }
    EXPECT_TRUE(close(zeroed.words->parameters(), cleared.words->parameters()));
  });
}

TEST_P(SparseGradients, OnlyRowsAreSent) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::every_pass});
    run.words->loss(communicator.rank()).backward();
    const at::Tensor grad = run.words->table->weight.grad();
    ASSERT_EQ(grad.layout(), at::kSparse);
    EXPECT_TRUE(grad.is_coalesced());
    // Rank r uses rows r and r + 3. All ranks use row 7.
    std::set<std::int64_t> rows{7};
    for (int rank = 0; rank < communicator.size(); ++rank) rows.insert({rank, rank + 3});
    EXPECT_EQ(grad._nnz(), static_cast<std::int64_t>(rows.size()));
    EXPECT_LT(run.reducer->stats().bytes_sent, 2 * communicator.size() * table_rows * 4 * 4);
  });
}

TEST_P(SparseGradients, ARankThatUsesNoneGetsTheOthers) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::every_pass});
    Words alone(true);
    const bool uses = communicator.rank() == 0;
    (uses ? run.words->loss(4) : run.words->out->weight.sum() * 0).backward();
    (alone->loss(4) / communicator.size()).backward();
    EXPECT_TRUE(close({run.words->table->weight.grad().to_dense()}, {alone->table->weight.grad().to_dense()}));
  });
}

TEST_P(SparseGradients, UnusedByAllStayUndefined) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::every_pass});
    run.words->out->weight.sum().backward();
    EXPECT_FALSE(run.words->table->weight.grad().defined());
    EXPECT_TRUE(run.words->out->weight.grad().defined());
  });
}

// A pass after an early round adds this rank's share to the mean.
TEST_P(SparseGradients, SeveralSyncsInOneWindow) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    const std::int64_t ranks = communicator.size();
    WordsRun run(communicator, true, {.policy = SyncPolicy::every_pass});
    Words alone(true);
    for (std::int64_t pass = 0; pass < 3; ++pass) {
      run.words->loss(pass * ranks + communicator.rank()).backward();
      for (std::int64_t rank = 0; rank < ranks; ++rank) (alone->loss(pass * ranks + rank) / ranks).backward();
    }
    EXPECT_TRUE(close({run.words->table->weight.grad().to_dense()}, {alone->table->weight.grad().to_dense()}));
  });
}

// The mean of the first round, of weight 3, is a part of a window of weight 4.
TEST_P(SparseGradients, ASyncThatOnlyPeersAddTo) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true);
    Words alone(true);
    for (const bool last : {false, true}) {
      run.reducer->enter_accumulate({.weight = last ? 1.0 : 3.0, .syncs = last, .sync_each_batch = true});
      (last ? run.words->out->weight.sum() : run.words->loss(communicator.rank())).backward();
      run.reducer->leave_accumulate(false);
    }
    for (int rank = 0; rank < communicator.size(); ++rank) (alone->loss(rank) / (4 * communicator.size())).backward();
    EXPECT_TRUE(close({run.words->table->weight.grad().to_dense()}, {alone->table->weight.grad().to_dense()}));
  });
}

TEST_P(SparseGradients, AreSavedWithTheWindow) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::manual});
    WordsRun resumed(communicator, true, {.policy = SyncPolicy::manual});
    {
      run.reducer->enter_no_sync();
      run.words->loss(communicator.rank()).backward();
      run.reducer->leave_no_sync();
    }
    resumed.reducer->load_state_dict(run.reducer->state_dict());
    for (WordsRun* one : {&run, &resumed}) one->words->loss(9 + communicator.rank()).backward();
    EXPECT_TRUE(close({resumed.words->table->weight.grad().to_dense()}, {run.words->table->weight.grad().to_dense()}));
  });
}

TEST_P(SparseGradients, TouchedByHandIsNotStepped) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::automatic});
    for (int step = 0; step < 3; ++step) run.step(communicator.rank(), 2);  // from now on the second pass is the last
    run.words->loss(1).backward();
    run.words->table->weight.mutable_grad() = run.words->table->weight.grad() * 2;
    EXPECT_THROW(run.optimizer.step(), UsageError);
    EXPECT_NO_THROW(run.optimizer.zero_grad());
  });
}

TEST_P(SparseGradients, ADenseGradientIsRefusedByName) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::every_pass});
    try {
      run.words->table->weight.sum().backward();
      FAIL() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("'table.weight' is dense"), std::string::npos) << error.what();
    }
  });
}

TEST_P(SparseGradients, InfinityIsSeenByAllRanks) {
  run_thread_ranks(GetParam(), [](const Communicator& communicator) {
    WordsRun run(communicator, true, {.policy = SyncPolicy::every_pass, .detect_overflow = true});
    const double factor = communicator.rank() == communicator.size() - 1 ? INFINITY : 1;
    (run.words->table(at::tensor({std::int64_t{3}})).sum() * factor).backward();
    EXPECT_TRUE(run.reducer->overflowed());
  });
}

// Ranks: none. Bytes that a rank cannot have sent.
TEST(SparseRows, BytesThatAreNoRowsAreRefusedByRank) {
  const at::Tensor parameter = at::zeros({10, 3});
  const at::Tensor gradient =
      at::sparse_coo_tensor(at::tensor({std::int64_t{2}, std::int64_t{9}}).view({1, 2}), at::ones({2, 3}), {10, 3})
          .coalesce();
  const std::vector<std::byte> good = sync::pack_rows(gradient);
  EXPECT_TRUE(at::equal(sync::sum_rows(std::vector<std::span<const std::byte>>{good, good}, parameter, 0.5).to_dense(),
                        gradient.to_dense()));

  std::vector<std::vector<std::byte>> bad;
  for (const std::size_t length : {std::size_t{1}, sizeof(std::int64_t), good.size() - 1, good.size() + 1}) {
    bad.push_back(good);
    bad.back().resize(length);
  }
  const auto with = [&](std::size_t at, std::int64_t value) {
    bad.push_back(good);
    std::memcpy(bad.back().data() + at, &value, sizeof(value));
  };
  for (const std::int64_t rows : {std::int64_t{-1}, std::int64_t{1}, std::int64_t{3}, std::int64_t{1} << 60}) {
    with(0, rows);
  }
  for (const std::int64_t row : {-1, 10}) with(sizeof(std::int64_t), row);
  for (std::size_t i = 0; i < bad.size(); ++i) {
    try {
      sync::sum_rows(std::vector<std::span<const std::byte>>{good, bad[i]}, parameter, 1);
      ADD_FAILURE() << "case " << i << " was taken";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{1}) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SparseGradients, testing::Values(1, 2, 3));

}  // namespace
}  // namespace tutti::test::sparse_gradients_test
