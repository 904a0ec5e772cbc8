// Ranks: none. The random generators of the simulated device in a checkpoint.
#include "train/random_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/simulated_device/simulated_device.h"

namespace tutti::test::device_random_state_test {
namespace {

at::Tensor draw(int device) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  return at::rand({8}, at::TensorOptions(at::Device(simulated::type, index))).cpu();
}

TEST(DeviceRandomState, EveryDeviceContinues) {
  at::manual_seed(7);
  draw(1);
  const StateDict state = random_state();
  EXPECT_TRUE(state.contains("cpu") && state.contains("sim_0") && state.contains("sim_1"));
  const at::Tensor of_0 = draw(0), of_1 = draw(1), of_cpu = at::rand({8});
  EXPECT_FALSE(draw(1).equal(of_1));
  load_random_state(state);
  EXPECT_TRUE(draw(0).equal(of_0));
  EXPECT_TRUE(draw(1).equal(of_1));
  EXPECT_TRUE(at::rand({8}).equal(of_cpu));
}

// A checkpoint of a machine with another type of accelerator.
TEST(DeviceRandomState, GeneratorsThatAreNotInTheStateStayAsTheyAre) {
  at::manual_seed(7);
  const StateDict all = random_state();
  const at::Tensor expected = draw(0);
  load_random_state(all);
  StateDict of_cuda;
  of_cuda.set("cpu", all.get<at::Tensor>("cpu"));
  of_cuda.set("cuda_0", all.get<at::Tensor>("sim_0"));
  load_random_state(of_cuda);
  EXPECT_TRUE(draw(0).equal(expected));
}

}  // namespace
}  // namespace tutti::test::device_random_state_test
