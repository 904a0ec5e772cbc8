// Loops with several backward passes through one graph: sequences, several losses, checkpointed segments.
#include <torch/csrc/autograd/autograd.h>

#include "sync/loop.h"
#include "sync/segment.h"

namespace tutti::test::long_pass_loops_test {
namespace {

struct RecurrentImpl : torch::nn::Module {
  /// The next state.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& state) { return at::tanh(cell(at::cat({x, state}, 1))); }
  TwoLayers cell = register_module("cell", TwoLayers(6, 5, 4, 1));
  TwoLayers readout = register_module("readout", TwoLayers(4, 3, 2, 2));
};
TORCH_MODULE(Recurrent);

struct Sequences {
  explicit Sequences(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  at::Tensor zeros() const { return at::zeros({stage.rows(2, 1, 0).size(0), 4}, at::kDouble); }
  at::Tensor input(int i, int time) const { return stage.rows(2, 2, 100 * i + time); }
  at::Tensor loss(const at::Tensor& state, int i, int time) {
    return (net->readout(state) - stage.rows(2, 2, 100 * i + time + 50)).pow(2).mean();
  }

  const Stage& stage;
  Recurrent net;
  Trained model{stage, net.ptr()};
};

// Each chunk of the sequence has a step. The next chunk starts from the detached state.
struct DetachedChunks : Sequences {
  using Sequences::Sequences;
  void iterate(int i) {
    at::Tensor state = zeros();
    for (int chunk = 0; chunk < 3; ++chunk) {
      const auto scope = stage.micro_batch({&model});
      state = state.detach();
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (int time = 4 * chunk; time < 4 * chunk + 4; ++time) {
        state = net(input(i, time), state);
        sum = sum + loss(state, i, time);
      }
      model.zero_grad();
      model.backward(sum);
      model.step();
    }
  }
};
TEST(LongPassLoops, TruncatedBackpropagationOverChunks) {
  expect_one_process_results<DetachedChunks>();
}

// Williams and Peng, 1990: at each time the loss goes back through the last three states, over retained graphs. The
// step is at the sequence's end.
struct SlidingWindow : Sequences {
  using Sequences::Sequences;
  void iterate(int i) {
    const auto scope = stage.micro_batch({&model});
    std::vector<std::pair<at::Tensor, at::Tensor>> states{{at::Tensor(), zeros()}};  // input, output
    for (int time = 0; time < 3 + i; ++time) {
      const at::Tensor in = states.back().second.detach().requires_grad_();
      const at::Tensor out = net(input(i, time), in);
      states.emplace_back(in, out);
      model.backward(loss(out, i, time), /*retain_graph=*/true);
      for (std::size_t back = 1; back < 3 && back + 1 < states.size(); ++back) {
        const at::Tensor& slope = states[states.size() - back].first.grad();
        states[states.size() - back - 1].second.backward(slope, /*retain_graph=*/true);
        model.passed();
      }
      for (auto& [came, went] : states) {
        if (came.defined()) came.mutable_grad().reset();
      }
    }
    model.step();
    model.zero_grad();
  }
};
TEST(LongPassLoops, TruncatedBackpropagationOverGraphsThatAreKept) {
  expect_one_process_results<SlidingWindow>();
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoLayers trunk = register_module("trunk", TwoLayers(3, 5, 4, 1));
  TwoLayers one = register_module("one", TwoLayers(4, 3, 2, 2));
  TwoLayers other = register_module("other", TwoLayers(4, 3, 1, 3));
};
TORCH_MODULE(TwoHeads);

// Each head's loss has its own pass through the shared trunk. A third pass starts from two roots.
struct SeveralLosses {
  explicit SeveralLosses(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      const at::Tensor shared = net->trunk(stage.rows(4, 3, 2 * i + part));
      const at::Tensor first = net->one(shared).pow(2).mean() * stage.share(2);
      const at::Tensor second = (net->other(shared) - 1).pow(2).mean() * stage.share(2);
      model.backward(first, /*retain_graph=*/true);
      model.backward(second, /*retain_graph=*/true);
      torch::autograd::backward({2 * first, shared.mean()}, {at::Tensor(), at::full({}, stage.share(2), at::kDouble)});
      model.passed();
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }

  const Stage& stage;
  TwoHeads net;
  Trained model{stage, net.ptr()};
};
TEST(LongPassLoops, SeveralLossesBackwardInOneStep) {
  expect_one_process_results<SeveralLosses>();
}

// Forward of the whole model runs again in backward. A step has two micro-batches.
struct Checkpointed {
  explicit Checkpointed(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const { return net->parameters(); }
  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      const at::Tensor x = stage.rows(4, 3, 2 * i + part).clone().requires_grad_();
      const at::Tensor hidden = at::tanh(Segment::apply(x, net->first));
      model.backward(Segment::apply(hidden, net->second).pow(2).mean() * stage.share(2));
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }

  const Stage& stage;
  TwoLayers net{3, 5, 2, 1};
  Trained model{stage, net.ptr()};
};
TEST(LongPassLoops, CheckpointedSegmentsAllOfTheModel) {
  expect_one_process_results<Checkpointed>();
}

}  // namespace
}  // namespace tutti::test::long_pass_loops_test
