#pragma once
// Random numbers of the simulated accelerator.
#include <ATen/core/Generator.h>

#include <optional>

namespace tutti::test::simulated {

at::Generator& default_generator(int device);
at::Generator new_generator(int device);
/// A CPU generator for one kernel. Takes a number of `generator`, or of the device's default generator.
at::Generator generator_for_one_kernel(const std::optional<at::Generator>& generator, int device);

}  // namespace tutti::test::simulated
