// Loops that learn representations: from a teacher, and from negatives of all ranks.
#include "sync/loop.h"
#include "tutti/sync/all_gather_with_grad.h"

namespace tutti::test::representation_loops_test {
namespace {

at::Tensor normalized(const at::Tensor& rows) {
  return rows / rows.norm(2, 1, true);
}

struct OnlineImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return predictor(encoder(x)); }
  TwoLayers encoder = register_module("encoder", TwoLayers(4, 5, 3, 1));
  TwoLayers predictor = register_module("predictor", TwoLayers(3, 4, 3, 2));
};
TORCH_MODULE(Online);

// Grill et al., "Bootstrap Your Own Latent", 2020: the student predicts a teacher's output. The teacher's parameters
// are a moving average of the student's. A step has two micro-batches.
struct TeacherAndStudent {
  explicit TeacherAndStudent(const Stage& where) : stage(where) {}
  std::vector<at::Tensor> parameters() const {
    auto all = online->parameters();
    for (const at::Tensor& parameter : teacher->parameters()) all.push_back(parameter);
    return all;
  }
  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&student}, part == 1);
      const at::Tensor x = stage.rows(4, 4, 2 * i + part);
      const at::Tensor target = normalized(teacher(x * 1.1 + 0.1)).detach();
      const at::Tensor loss = (normalized(online(x)) - target).pow(2).sum(1).mean();
      student.backward(loss * stage.share(2));
      if (part == 0) continue;
      student.step();
      student.zero_grad();
    }
    const at::NoGradGuard no_grad;
    const auto from = online->encoder->parameters();
    auto to = teacher->parameters();
    for (std::size_t p = 0; p < to.size(); ++p) to[p].mul_(0.9).add_(from[p], 0.1);
  }

  const Stage& stage;
  Online online;
  TwoLayers teacher{4, 5, 3, 1};
  Trained student{stage, online.ptr()};
};
TEST(RepresentationLoops, ATeacherThatIsAMovingAverageOfItsStudent) {
  expect_one_process_results<TeacherAndStudent>();
}

struct EncoderImpl : torch::nn::Module {
  TwoLayers images = register_module("images", TwoLayers(4, 5, 3, 1));
  TwoLayers texts = register_module("texts", TwoLayers(3, 5, 3, 2));
  at::Tensor temperature = register_parameter("temperature", at::full({}, 0.7, at::kDouble));
};
TORCH_MODULE(Encoder);

/// Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021: each image is
/// compared with the texts of all ranks, and each text with the images of all ranks. A step has two micro-batches.
struct Contrastive {
  explicit Contrastive(const Stage& where) : stage(where), gather(where.communicator) {}
  virtual ~Contrastive() = default;
  std::vector<at::Tensor> parameters() const { return encoder->parameters(); }
  at::Tensor of_all_ranks(const at::Tensor& rows) { return stage.alone() ? rows : gather(rows); }
  /// The mean over `own` rows. Row i of `own` matches row `first` + i of `all`.
  at::Tensor cross_entropy(const at::Tensor& own, const at::Tensor& all, std::int64_t first) {
    const at::Tensor logits = own.matmul(all.t()) * encoder->temperature.exp();
    return -logits.log_softmax(1).diagonal(first).mean();
  }
  virtual at::Tensor loss(const at::Tensor& images, const at::Tensor& texts) = 0;

  void iterate(int i) {
    for (int part = 0; part < 2; ++part) {
      const auto scope = stage.micro_batch({&model}, part == 1);
      const at::Tensor images = normalized(encoder->images(stage.rows(3, 4, 4 * i + part)));
      const at::Tensor texts = normalized(encoder->texts(stage.rows(3, 3, 4 * i + 2 + part)));
      model.backward(loss(images, texts) * stage.share(2));
      if (part == 0) continue;
      model.step();
      model.zero_grad();
    }
  }

  const Stage& stage;
  AllGatherWithGrad gather;
  Encoder encoder;
  Trained model{stage, encoder.ptr()};
};

struct OwnRowsAgainstAll : Contrastive {
  using Contrastive::Contrastive;
  at::Tensor loss(const at::Tensor& images, const at::Tensor& texts) override {
    const std::int64_t first = stage.alone() ? 0 : images.size(0) * stage.communicator.rank();
    return (cross_entropy(images, of_all_ranks(texts), first) + cross_entropy(texts, of_all_ranks(images), first)) / 2;
  }
};
TEST(RepresentationLoops, ContrastiveLossOfOwnRowsAgainstThoseOfAllRanks) {
  expect_one_process_results<OwnRowsAgainstAll>();
}

struct WholeLossOnEachRank : Contrastive {
  using Contrastive::Contrastive;
  at::Tensor loss(const at::Tensor& images, const at::Tensor& texts) override {
    const at::Tensor all_images = of_all_ranks(images);
    const at::Tensor all_texts = of_all_ranks(texts);
    return (cross_entropy(all_images, all_texts, 0) + cross_entropy(all_texts, all_images, 0)) / 2;
  }
};
TEST(RepresentationLoops, ContrastiveLossThatEachRankComputesWhole) {
  expect_one_process_results<WholeLossOnEachRank>();
}

}  // namespace
}  // namespace tutti::test::representation_loops_test
