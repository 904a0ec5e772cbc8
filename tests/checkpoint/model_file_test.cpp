#include "tutti/checkpoint/model_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/models.h"
#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "support/training.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/error.h"

namespace tutti::test::model_file_test {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Tensors copies_of(const torch::nn::Module& model) {
  Tensors copies;
  for (const auto& [name, tensor] : named_tensors_of(model)) copies[name] = tensor.detach().clone();
  return copies;
}

void expect_same(const torch::nn::Module& model, const Tensors& expected) {
  const auto actual = named_tensors_of(model);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(same(actual.at(name), tensor)) << name;
}

TEST(ModelFile, NamesAreThoseOfPyTorch) {
  std::string names;
  for (const auto& [name, tensor] : named_tensors_of(*Net())) names += name + " ";
  EXPECT_EQ(names,
            "first.bias first.weight norm.bias norm.num_batches_tracked norm.running_mean norm.running_var norm.weight "
            "second.weight ");
}

/// A layer with a mask that belongs to no file.
struct Masked : torch::nn::Module, NonPersistentBuffers {
  Masked() {
    register_parameter("weight", at::ones({2}));
    register_buffer("mask", at::ones({2}));
    register_buffer("seen", at::ones({}));
  }
  std::set<std::string> non_persistent_buffers() const override { return {"mask"}; }
};

TEST(ModelFile, NonPersistentBuffersAreOmittedAndIgnored) {
  torch::nn::Module model;
  model.register_module("layer", std::make_shared<Masked>());
  std::string names;
  for (const auto& [name, tensor] : named_tensors_of(model)) names += name + " ";
  EXPECT_EQ(names, "layer.seen layer.weight ");
  EXPECT_EQ(named_tensors_of(Masked()).size(), 2U);
  Tensors file{{"layer.seen", at::full({}, 2.0)}, {"layer.weight", at::full({2}, 2.0)}};
  EXPECT_NO_THROW(load_model(model, file));
  file.emplace("layer.mask", at::full({2}, 2.0));  // as a file of an earlier version
  EXPECT_NO_THROW(load_model(model, file));
  EXPECT_TRUE(same(model.named_buffers()["layer.mask"], at::ones({2})));
  EXPECT_TRUE(same(model.named_buffers()["layer.seen"], at::full({}, 2.0)));
  file.emplace("mask", at::ones({2}));
  EXPECT_THROW(load_model(model, file), CheckpointError);
}

TEST(ModelFile, ParametersAndBuffersAreRestoredInPlace) {
  const TemporaryFolder folder;
  Net saved;
  fill(*saved, 1);
  saved->norm->running_mean.fill_(3);
  saved->norm->num_batches_tracked.fill_(12);
  save_model(*saved, folder.path() / "model");
  Net loaded;
  fill(*loaded, 2);
  const at::Tensor weight = loaded->first->weight;
  const auto result = load_model(*loaded, folder.path() / "model");
  EXPECT_TRUE(result.missing.empty() && result.unexpected.empty());
  expect_same(*loaded, copies_of(*saved));
  EXPECT_TRUE(loaded->first->weight.is_same(weight));
  EXPECT_TRUE(weight.requires_grad() && weight.is_leaf());
}

TEST(ModelFile, ATiedTensorIsWrittenOnce) {
  const TemporaryFolder folder;
  Tied saved;
  fill(*saved, 1);
  save_model(*saved, folder.path() / "model");
  const auto file = load_safetensors(folder.path() / "model");
  EXPECT_EQ(file.tensors.size(), 2U);
  EXPECT_TRUE(file.tensors.contains("embedding.weight"));
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"head.weight", "embedding.weight"}}));
  Tied loaded;
  fill(*loaded, 2);
  load_model(*loaded, folder.path() / "model");
  expect_same(*loaded, copies_of(*saved));
}

TEST(ModelFile, ATiedTensorIsLoadedFromEitherName) {
  Tied model;
  fill(*model, 1);
  const auto bias = at::ones({5});
  load_model(*model, Tensors{{"head.bias", bias}, {"head.weight", at::full({5, 3}, 2.0)}});
  EXPECT_TRUE(same(model->embedding->weight, at::full({5, 3}, 2.0)));
  load_model(*model, Tensors{{"head.bias", bias}, {"embedding.weight", at::full({5, 3}, 4.0)}});
  EXPECT_TRUE(same(model->head->weight, at::full({5, 3}, 4.0)));
  const auto nan = at::full({5, 3}, std::numeric_limits<double>::quiet_NaN());
  load_model(*model, Tensors{{"head.bias", bias}, {"embedding.weight", nan}, {"head.weight", nan.clone()}});
  expect_error<CheckpointError>(
      [&] {
        load_model(*model, Tensors{{"head.bias", bias}, {"embedding.weight", nan}, {"head.weight", at::ones({5, 3})}});
      },
      {"'embedding.weight' and 'head.weight' differ"});
}

TEST(ModelFile, DifferentViewsOfOneStorageAreNotTied) {
  const TemporaryFolder folder;
  Net model;
  const auto flat = at::arange(8, at::kFloat);
  model->norm->running_mean.set_data(flat.narrow(0, 0, 4));
  model->norm->running_var.set_data(flat.narrow(0, 4, 4));
  save_model(*model, folder.path() / "model");
  const auto file = load_safetensors(folder.path() / "model");
  EXPECT_FALSE(file.metadata.contains("norm.running_var"));
  EXPECT_TRUE(same(file.tensors.at("norm.running_var"), flat.narrow(0, 4, 4)));
}

TEST(ModelFile, ListsEverythingThatDoesNotFitAndLoadsNothing) {
  Net model;
  fill(*model, 1);
  const auto before = copies_of(*model);
  auto tensors = copies_of(*model);
  tensors["first.bias"] = at::ones({4});
  tensors["first.weight"] = at::ones({3, 4});
  tensors["third.weight"] = at::ones({1});
  tensors.erase("second.weight");
  for (const bool strict : {true, false}) {
    expect_error<CheckpointError>([&] { load_model(*model, tensors, {.strict = strict}); },
                                  {"'first.weight'", "[3, 4]", "[4, 3]"});
  }
  expect_error<CheckpointError>([&] { load_model(*model, tensors); }, {"'second.weight'", "'third.weight'"});
  expect_same(*model, before);
}

TEST(ModelFile, ATensorOfTheModelThatCannotBeWrittenIsNamedAndNothingIsLoaded) {
  const auto refuses = [](const at::Tensor& tensor, const std::string& reason) {
    torch::nn::Module model;
    const at::Tensor first = model.register_buffer("first", at::ones({2}));
    model.register_buffer("second", tensor);
    const Tensors file{{"first", at::full({2}, 2.0)}, {"second", at::full({2}, 2.0)}};
    expect_error<CheckpointError>([&] { load_model(model, file); }, {"nothing was loaded", "'second'", reason});
    EXPECT_TRUE(first.equal(at::ones({2})));
  };
  refuses(at::ones({1}).expand({2}), "share memory");
  refuses(at::ones({2}, at::kMeta), "meta device");
  refuses(at::ones({2}).to_sparse(), "not dense");
}

TEST(ModelFile, WithoutStrictReturnsMissingAndUnexpectedNames) {
  Net model;
  auto tensors = copies_of(*model);
  tensors["third.weight"] = at::ones({1});
  tensors["first.bias"] = at::ones({4});
  tensors.erase("second.weight");
  const auto result = load_model(*model, tensors, {.strict = false});
  EXPECT_EQ(result.missing, std::vector<std::string>{"second.weight"});
  EXPECT_EQ(result.unexpected, std::vector<std::string>{"third.weight"});
  EXPECT_TRUE(same(model->first->bias, at::ones({4})));
}

TEST(ModelFile, ConvertsDtypes) {
  Net model;
  auto tensors = copies_of(*model);
  tensors["first.bias"] = at::full({4}, 1.5, at::kBFloat16);
  load_model(*model, tensors);
  EXPECT_TRUE(same(model->first->bias, at::full({4}, 1.5)));
  tensors["first.bias"] = at::ones({4}, at::kComplexFloat);
  expect_error<CheckpointError>([&] { load_model(*model, tensors); }, {"'first.bias' is complex"});
}

TEST(ModelFile, NamesTheFileThatDoesNotFit) {
  const TemporaryFolder folder;
  save_model(*Tied(), folder.path() / "tied");
  expect_error<CheckpointError>([&] { load_model(*Net(), folder.path() / "tied"); }, {"tied", "'head.bias'"});
}

}  // namespace
}  // namespace tutti::test::model_file_test
