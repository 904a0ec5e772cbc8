// The rules of docs/gradients.md: the end and the weight of a window, and errors for modified gradients.
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>

#include "support/rank_case.h"
#include "support/training.h"
#include "sync/segment.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test {
namespace {

const std::vector<int> one_to_three = {1, 2, 3};

template <typename Action>
std::string what_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_says(const std::string& message, const std::string& words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST(WindowRules, AfterItsPassTheLastScopesClearingDropsWindowAndWeight) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      {
        const auto scope = toy.accumulate(1, false);
        toy.pass({.a = 8});
      }
      const auto scope = toy.accumulate(2, true);
      toy.pass({.a = 8});
      toy.optimizer.zero_grad();
      EXPECT_FALSE(toy.a.grad().defined());
      toy.pass({.a = 6});
      toy.expect_gradient(toy.a, 3);  // of this pass alone, with this scope's weight
      toy.optimizer.step();
    });
  }
}

TEST(WindowRules, BeforeItsPassAScopesClearingLeavesTheOpenWindowAlone) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      for (const bool last : {false, true}) {
        const auto scope = toy.accumulate(1, last);
        toy.optimizer.zero_grad();
        toy.pass({.a = last ? 2 : 4});
        if (!last) toy.optimizer.zero_grad();  // does nothing in an earlier micro-batch
      }
      toy.expect_gradient(toy.a, 3);
    });
  }
}

TEST(WindowRules, BeforeItsPassAScopesClearingTakesWhatAFinishedWindowLeft) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      {
        const auto scope = toy.accumulate(1, true);
        toy.pass({.a = 4});
        toy.optimizer.step();
        toy.optimizer.zero_grad();
        toy.pass({.a = 8});  // no step uses this pass
      }
      {
        const auto scope = toy.accumulate(1, true);
        toy.optimizer.zero_grad();
        toy.pass({.a = 2});
        toy.expect_gradient(toy.a, 2);
        toy.optimizer.step();
      }
      toy.optimizer.zero_grad();
      toy.pass({.a = 8});  // outside of scopes
      const auto scope = toy.accumulate(1, true);
      toy.optimizer.zero_grad();
      toy.pass({.a = 2});
      toy.expect_gradient(toy.a, 2);
    });
  }
}

TEST(WindowRules, BeforeItsPassAScopesClearingDropsAWindowWhoseStepWasSkipped) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      for (const bool first_is_last : {true, false}) {
        {
          const auto scope = toy.accumulate(1, true);
          toy.pass({.a = std::nanf("")});  // no step uses this pass
        }
        {
          const auto scope = toy.accumulate(1, first_is_last);
          toy.optimizer.zero_grad();
          EXPECT_FALSE(toy.a.grad().defined());
          toy.pass({.a = 2});
        }
        if (!first_is_last) {
          const auto scope = toy.accumulate(1, true);
          toy.optimizer.zero_grad();  // the open window goes on
          toy.pass({.a = 4});
        }
        toy.expect_gradient(toy.a, first_is_last ? 2 : 3);
        toy.optimizer.step();
        toy.optimizer.zero_grad();
      }
    });
  }
}

TEST(WindowRules, AModulesOwnClearingTakesTheWeightAlong) {
  for (const bool set_to_none : {true, false}) {
    for (const int ranks : one_to_three) {
      run_thread_ranks(ranks, [set_to_none](const Communicator& communicator) {
        ToyModel toy(communicator);
        {
          const auto scope = toy.accumulate(3, false);
          toy.pass({.a = 8});
        }
        toy.inner->zero_grad(set_to_none);
        const auto scope = toy.accumulate(1, true);
        toy.pass({.a = 4});
        toy.expect_gradient(toy.a, 4);
      });
    }
  }
}

// The rank that skips its pass still has the earlier weight, and enters its peers' synchronization.
TEST(WindowRules, AModulesOwnClearingTakesTheWeightAlongWhereTheNextPassIsLeftOut) {
  for (const bool steps : {true, false}) {
    for (const int ranks : {2, 3}) {
      run_thread_ranks(ranks, [steps](const Communicator& communicator) {
        ToyModel toy(communicator);
        {
          const auto scope = toy.accumulate(3, true);
          toy.pass({.a = 8});
        }
        toy.inner->zero_grad();
        {
          const auto scope = toy.accumulate(1, true);
          if (communicator.rank() == 0) toy.pass({.a = 4});
          if (steps) toy.optimizer.step();
        }
        toy.expect_gradient(toy.a, 4);
      });
    }
  }
}

TEST(WindowRules, WhereOnlySomeGradientsOfAWeightedWindowVanishItIsAnErrorByName) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      {
        const auto scope = toy.accumulate(3, false);
        toy.pass({.a = 8, .b = 8});
      }
      toy.b.mutable_grad().reset();
      expect_says(what_of([&] {
                    const auto scope = toy.accumulate(1, false);
                    toy.pass({.a = 4});
                  }),
                  "the gradient of 'b' was cleared in the middle of a window");
    });
  }
}

TEST(WindowRules, LibTorchsClippingBeforeALateSyncIsAnErrorOnAllRanks) {
  for (const bool by_value : {false, true}) {
    for (const int ranks : one_to_three) {
      run_thread_ranks(ranks, [by_value](const Communicator& communicator) {
        ToyModel toy(communicator, {.policy = SyncPolicy::automatic});
        const auto window = [&](int passes) {
          for (int i = 0; i < passes; ++i) toy.pass({.a = 4, .b = 8});
          if (by_value) {
            torch::nn::utils::clip_grad_value_({toy.a, toy.b}, 1);
          } else {
            torch::nn::utils::clip_grad_norm_({toy.a, toy.b}, 1);
          }
          toy.optimizer.step();
          toy.optimizer.zero_grad();
        };
        for (int i = 0; i < 3; ++i) window(4);
        const std::string said = what_of([&] { window(2); });
        expect_says(said, communicator.size() == 1 ? "" : "clip_grad_norm_()");
        expect_says(said, "was modified before it was synchronized");
        toy.optimizer.zero_grad();
        window(4);
      });
    }
  }
}

TEST(WindowRules, LibTorchsClippingInAScopeWhoseSyncIsStillDueIsAnErrorOnAllRanks) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      const auto clipped = [&] {
        const auto scope = toy.accumulate(1, true);
        {
          const auto quiet = NoSyncScope({toy.reducer});
          toy.pass({.a = 4.0 * (1 + communicator.rank())});
        }
        if (communicator.rank() == 0) torch::nn::utils::clip_grad_norm_({toy.a}, 1);
        toy.optimizer.step();
      };
      expect_says(what_of(clipped), "was modified before it was synchronized");
      toy.optimizer.zero_grad();
      toy.pass({.a = 2});
      toy.expect_gradient(toy.a, 2);
    });
  }
}

TEST(WindowRules, AGradientThatTheProgramHoldsKeepsItsValues) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      toy.pass({.a = 4, .b = 1});
      const at::Tensor held = toy.a.grad();
      const at::Tensor view = toy.b.grad().detach().view({-1});
      toy.optimizer.zero_grad();
      toy.pass({.a = 2, .b = 7});
      const at::Tensor second = toy.a.grad();
      toy.inner->zero_grad();  // not the prepared optimizer
      toy.pass({.b = 5});
      EXPECT_TRUE(at::equal(held, at::full({3}, 4.0F))) << held;
      EXPECT_TRUE(at::equal(view, at::full({3}, 1.0F))) << view;
      EXPECT_TRUE(at::equal(second, at::full({3}, 2.0F))) << second;
      toy.expect_gradient(toy.b, 5);
      // The program replaces the gradient by a sum of held gradients. Held handles keep their values.
      toy.a.mutable_grad() = held + second;
      toy.optimizer.step();
      EXPECT_TRUE(at::equal(toy.a, at::full({3}, -6.0F))) << toy.a;
    });
  }
}

// An aborted round discards its sums. The sums' memory may hold a gradient that the program holds.
TEST(WindowRules, AGradientThatTheProgramHoldsKeepsItsValuesWhenASyncIsAborted) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      {
        const auto scope = toy.accumulate(2, false);
        toy.pass({.a = 4});
      }
      const at::Tensor held = toy.a.grad();
      const at::Tensor values = held.clone();
      toy.inner->zero_grad();
      expect_says(what_of([&] {
                    const auto scope = toy.accumulate(1, true);
                    throw std::runtime_error("boom");
                  }),
                  "boom");
      toy.optimizer.zero_grad();
      EXPECT_TRUE(at::equal(held, values)) << held;
    });
  }
}

TEST(WindowRules, AnUnreferencedGradientIsNotCopied) {
  run_thread_ranks(1, [](const Communicator& communicator) {
    ToyModel toy(communicator);
    toy.pass({.a = 4});
    const void* const place = toy.a.grad().data_ptr();
    toy.optimizer.zero_grad();
    toy.pass({.a = 2});
    EXPECT_EQ(toy.a.grad().data_ptr(), place);
  });
}

TEST(WindowRules, APassThatIsAllNestedEndsWithBackward) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [ranks](const Communicator& communicator) {
      Mlp one, many;
      const auto loss = [](Mlp& net, std::int64_t index) {
        at::Tensor x = batch_of(index).input.requires_grad_();
        x = Segment::apply(x, net->first);
        return Segment::apply(at::tanh(x), net->second).pow(2).mean();
      };
      DistributedDataParallel ddp(many, communicator);
      torch::optim::SGD sgd_of_one(one->parameters(), 0.1), sgd(many->parameters(), 0.1);
      for (int round = 0; round < 4; ++round) {
        one->zero_grad();
        many->zero_grad();
        for (int rank = 0; rank < ranks; ++rank) (loss(one, round * ranks + rank) / ranks).backward();
        loss(many, round * ranks + communicator.rank()).backward();
        EXPECT_EQ(ddp.stats().syncs, round + 1);
        EXPECT_TRUE(close(gradients_of(*many), gradients_of(*one))) << "round " << round;
        sgd_of_one.step();
        sgd.step();
      }
    });
  }
}

TEST(WindowRules, AScopeCanBeSavedBeforeItsFirstPassOfAnotherWindow) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    ToyModel toy(communicator);
    const auto scope = toy.accumulate(1, true);
    EXPECT_THROW(toy.reducer->state_dict(), UsageError);
    toy.pass({.a = 8});
    EXPECT_NO_THROW(toy.reducer->state_dict());
    toy.optimizer.step();
    EXPECT_NO_THROW(toy.reducer->state_dict());
    toy.optimizer.zero_grad();
    EXPECT_NO_THROW(toy.reducer->state_dict());
  });
}

TEST(WindowRules, AWindowIsDiscardedOnRequest) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      {
        const auto scope = toy.accumulate(3, false);
        toy.pass({.a = 8});
        toy.reducer->discard_accumulation();
        EXPECT_FALSE(toy.a.grad().defined());
      }
      const auto scope = toy.accumulate(1, true);
      toy.pass({.a = 4});
      toy.expect_gradient(toy.a, 4);
      toy.reducer->discard_accumulation();
      toy.pass({.a = 2});
      toy.expect_gradient(toy.a, 2);
    });
  }
}

TEST(WindowRules, ALoopThatBreaksLeavesItsWindowOpen) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      for (int i = 0; i < 4; ++i) {
        const auto scope = toy.accumulate(1, i == 3);
        toy.pass({.a = 8});
        if (i == 1) break;
      }
      const auto scope = toy.accumulate(1, true);
      toy.pass({.a = 2});
      toy.expect_gradient(toy.a, 6);
    });
  }
}

// The failed rank makes no more calls on its model, so the end of the scope must notify the peers, also if no rank has
// run a pass.
TEST(WindowRules, AScopeThatAnExceptionLeavesNotifiesPeersAtOnce) {
  for (const bool trains : {true, false}) {
    run_thread_ranks(3,
                     [trains](const Communicator& communicator) {
                       ToyModel toy(communicator);
                       const auto scope_of = [&] {
                         const auto scope = toy.accumulate(1, true);
                         if (communicator.rank() == 1) throw std::runtime_error("no such file");
                         if (trains) toy.pass({.a = 4});
                       };
                       if (communicator.rank() == 1) {
                         EXPECT_THROW(scope_of(), std::runtime_error);
                       } else {
                         EXPECT_THROW(scope_of(), PeerError);
                       }
                       communicator.barrier().wait();
                       toy.optimizer.zero_grad();
                       toy.pass({.a = 2});
                       toy.expect_gradient(toy.a, 2);
                     },
                     {.timeout = std::chrono::seconds(20)});
  }
}

TEST(WindowRules, ClearingOnSomeRanksOnlyIsAMismatchError) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    ToyModel toy(communicator);
    toy.pass({.a = 4});
    toy.optimizer.step();
    if (communicator.rank() == 0) toy.optimizer.zero_grad();
    expect_says(what_of([&] { toy.pass({.a = 2}); }), "rank 1 accumulated into the gradients of the previous step");
  });
}

}  // namespace
}  // namespace tutti::test
