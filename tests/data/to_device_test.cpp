// Moving batches to a device. The tests use the meta device, whose tensors can be distinguished from tensors on the
// CPU.
#include "tutti/data/to_device.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>

#include "data/numbers.h"
#include "tutti/core/error.h"

namespace user {

struct Batch {
  at::Tensor tokens;
  int length = 0;
};

Batch to_device(Batch batch, const tutti::Placement& place) {
  batch.tokens = place(batch.tokens);
  return batch;
}

/// A batch type without an overload of to_device().
struct Closed {
  at::Tensor tokens;
};

}  // namespace user

namespace tutti::to_device_test {
namespace {

static_assert(Placeable<at::Tensor> && Placeable<std::vector<int>> && Placeable<user::Batch>);
static_assert(Placeable<std::vector<std::pair<user::Batch, std::map<int, at::Tensor>>>>);
static_assert(!Placeable<user::Closed> && !Placeable<std::vector<user::Closed>>);

at::Tensor one() {
  return at::ones({2});
}

const Placement meta(at::kMeta);

TEST(ToDevice, ReachesEveryTensor) {
  EXPECT_TRUE(to_device(one(), meta).is_meta());
  const auto example = to_device(torch::data::Example<>(one(), one()), meta);
  EXPECT_TRUE(example.data.is_meta() && example.target.is_meta());
  EXPECT_TRUE(to_device(torch::data::TensorExample(one()), meta).data.is_meta());
  EXPECT_TRUE(to_device(torch::data::Example<at::Tensor, int>(one(), 3), meta).data.is_meta());
  for (const auto& element : to_device(std::vector<torch::data::Example<>>{{one(), one()}, {one(), one()}}, meta)) {
    EXPECT_TRUE(element.data.is_meta() && element.target.is_meta());
  }
  EXPECT_TRUE(to_device(std::make_pair(one(), 1), meta).first.is_meta());
  const auto [a, text, b] = to_device(std::make_tuple(one(), std::string("x"), one()), meta);
  EXPECT_TRUE(a.is_meta() && b.is_meta());
  EXPECT_EQ(text, "x");
  EXPECT_TRUE(to_device(std::map<std::string, at::Tensor>{{"x", one()}}, meta).at("x").is_meta());
  EXPECT_TRUE(to_device(std::unordered_map<std::string, at::Tensor>{{"x", one()}}, meta).at("x").is_meta());
  EXPECT_TRUE(to_device(std::optional<at::Tensor>(one()), meta)->is_meta());
  EXPECT_FALSE(to_device(std::optional<at::Tensor>(), meta).has_value());
  EXPECT_EQ(to_device(std::vector<bool>{true, false}, meta), (std::vector<bool>{true, false}));
}

TEST(ToDevice, FindsTheOverloadOfAUserDefinedType) {
  EXPECT_TRUE(to_device(user::Batch{one(), 1}, meta).tokens.is_meta());
  EXPECT_TRUE(to_device(std::vector<user::Batch>{{one(), 1}}, meta)[0].tokens.is_meta());
  EXPECT_TRUE(to_device(std::make_pair(user::Batch{one(), 1}, 2), meta).first.tokens.is_meta());
}

TEST(ToDevice, DoesNotChangeValuesWithoutADevice) {
  const auto tensor = one();
  EXPECT_TRUE(to_device(tensor, Placement()).is_same(tensor));
  EXPECT_TRUE(to_device(tensor, Placement(at::kCPU)).is_same(tensor));
  EXPECT_TRUE(to_device(tensor, Placement(at::kCPU, true)).is_same(tensor));
  EXPECT_FALSE(to_device(at::Tensor(), meta).defined());
  EXPECT_FALSE(Placement().moves());
  EXPECT_FALSE(meta.ahead().moves());
}

struct Tensors : test::Numbers {
  using Numbers::Numbers;
  user::Batch get_batch(const std::vector<std::size_t>& indices) const {
    return {one(), static_cast<int>(indices.size())};
  }
};

struct ClosedTensors : test::Numbers {
  using Numbers::Numbers;
  user::Closed get_batch(const std::vector<std::size_t>&) const { return {one()}; }
};

TEST(ToDevice, IsCalledByLoaders) {
  for (const int workers : {0, 2}) {
    DataLoader<Tensors> loader(Tensors(5), {.batch_size = 2, .num_workers = workers, .device = at::kMeta});
    int samples = 0;
    for (const auto& batch : loader) {
      EXPECT_TRUE(batch.tokens.is_meta());
      samples += batch.length;
    }
    EXPECT_EQ(samples, 5);
  }
  DataLoader<Tensors> plain(Tensors(5), {});
  for (const auto& batch : plain) EXPECT_TRUE(batch.tokens.is_cpu());
}

TEST(ToDevice, ImpossiblePlacementsAreRefusedAtConstruction) {
  EXPECT_THROW(DataLoader<ClosedTensors>(ClosedTensors(5), {.device = at::kCPU}), UsageError);
  DataLoader<ClosedTensors> stays(ClosedTensors(1), {});
  for (const auto& batch : stays) EXPECT_TRUE(batch.tokens.is_cpu());
  const auto absent = at::Device(at::kCUDA, 100);
  EXPECT_THROW(DataLoader<Tensors>(Tensors(5), {.device = absent}), UsageError);
}

TEST(ToDevice, CopiesToCudaThroughPinnedMemory) {
  if (!at::hasCUDA()) GTEST_SKIP() << "there is no CUDA device";
  const auto device = at::Device(at::kCUDA, 0);
  const Placement place(device, true);
  EXPECT_TRUE(place.ahead()(one()).is_pinned());
  EXPECT_TRUE(place.ahead()(one()).is_cpu());
  EXPECT_TRUE(place(one()).is_cuda());
  EXPECT_TRUE(place(place.ahead()(one())).cpu().equal(one()));
  for (const int workers : {0, 2}) {
    DataLoader<Tensors> loader(Tensors(50),
                               {.batch_size = 2, .num_workers = workers, .device = device, .non_blocking = true});
    for (const auto& batch : loader) {
      EXPECT_EQ(batch.tokens.device(), device);
      EXPECT_TRUE(batch.tokens.cpu().equal(one()));
    }
  }
}

}  // namespace
}  // namespace tutti::to_device_test
