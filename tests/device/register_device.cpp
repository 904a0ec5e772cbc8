// Registers the simulated device before the tests of this program run.
#include <gtest/gtest.h>

#include <memory>

#include "support/simulated_device/simulated_device.h"

namespace tutti::test {
namespace {

class SimulatedDevice final : public testing::Environment {
 public:
  void SetUp() override { simulated::register_device(); }
};

// GoogleTest deletes it.
const testing::Environment* const environment =
    testing::AddGlobalTestEnvironment(std::make_unique<SimulatedDevice>().release());

}  // namespace
}  // namespace tutti::test
