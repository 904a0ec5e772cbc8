#pragma once
// A digest of all parameters of a model. Equal runs have equal digests.
#include <torch/nn/module.h>
#include <tutti/detail/core/crc32c.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

/// Returns the CRC-32C of the parameters' bytes, in hexadecimal.
inline std::string digest(const torch::nn::Module& model) {
  std::uint32_t crc = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    crc = tutti::crc32c({static_cast<const std::byte*>(parameter.const_data_ptr()), parameter.nbytes()}, crc);
  }
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}
