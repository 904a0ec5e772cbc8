#include "tutti/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/damaged.h"
#include "checkpoint/replace_file.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/safetensors_layout.h"
#include "device/host_copy.h"
#include "tutti/core/error.h"

namespace tutti {
namespace checkpoint {
namespace {

constexpr std::size_t batch_bytes = 64 << 20;  // copied from a device with one wait

// In the order of element_types.
constexpr std::array<at::ScalarType, element_types.size()> scalar_types = {
    at::kBool,
    at::kByte,
    at::kChar,
    at::kFloat8_e4m3fn,
    at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2,
    at::kFloat8_e5m2fnuz,
    at::kFloat8_e8m0fnu,
    at::kShort,
    at::kUInt16,
    at::kHalf,
    at::kBFloat16,
    at::kInt,
    at::kUInt32,
    at::kFloat,
    at::kLong,
    at::kUInt64,
    at::kDouble,
    at::kComplexFloat,
};

std::optional<std::size_t> type_of(const at::Tensor& tensor) {
  for (std::size_t type = 0; type < scalar_types.size(); ++type) {
    if (scalar_types[type] == tensor.scalar_type()) return type;
  }
  return std::nullopt;
}

SafetensorsLayout layout_of(const Safetensors& content) {
  SafetensorsLayout layout{.tensors = {}, .metadata = content.metadata};
  for (const auto& [name, tensor] : content.tensors) {
    const auto refuse = [&name = name](const std::string& what) {
      throw UsageError("cannot save tensor '" + name + "' to a safetensors file: " + what);
    };
    if (!tensor.defined()) refuse("it is undefined");
    if (tensor.is_meta()) refuse("it is on the meta device, which has no values");
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) refuse("it is not dense; convert it");
    const auto type = type_of(tensor);
    if (!type)
      refuse(std::string("the format does not support ") + c10::toString(tensor.scalar_type()) + "; convert it");
    layout.tensors.push_back({.name = name, .type = *type, .shape = tensor.sizes().vec()});
  }
  return layout;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

// The reference allows any byte for a bool. In C++ a bool that is neither 0 nor 1 is undefined behaviour.
void make_bools(std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) byte = byte == std::byte{0} ? std::byte{0} : std::byte{1};
}

}  // namespace

void check_savable(const Safetensors& content) {
  SafetensorsLayout layout = layout_of(content);
  make_header(layout);
}

FileDigest write_safetensors(const std::filesystem::path& path, const Safetensors& content, const FileSystem& files) {
  SafetensorsLayout layout = layout_of(content);
  const std::string header = make_header(layout);
  OutputFile file(path, files);
  file.write(std::as_bytes(std::span(header)));
  // A few tensors at a time, so that only these are in memory twice.
  std::vector<at::Tensor> batch;
  std::size_t bytes = 0;
  const auto write_batch = [&] {
    for (const at::Tensor& tensor : devices::copies_on_host(batch)) {
      file.write(bytes_of(tensor.contiguous().resolve_conj().resolve_neg()));
    }
    batch.clear();
    bytes = 0;
  };
  for (const TensorEntry& entry : layout.tensors) {
    batch.push_back(content.tensors.at(entry.name).detach());
    bytes += batch.back().nbytes();
    if (bytes >= batch_bytes) write_batch();
  }
  write_batch();
  return file.finish();
}

SafetensorsLayout read_layout(InputFile& file, const std::filesystem::path& path) {
  try {
    std::array<std::byte, prefix_size> prefix{};
    if (file.size() < prefix_size) {
      throw CheckpointError("not a valid safetensors file: it has only " + std::to_string(file.size()) + " bytes");
    }
    file.read(prefix);
    std::vector<std::byte> header(header_size(prefix, file.size()));
    file.read(header);
    return parse_header(header, file.size() - prefix_size - header.size());
  } catch (const CheckpointError& error) {
    throw DamagedCheckpointError("cannot read " + path.string() + ": " + error.what());
  }
}

ReadSafetensors read_safetensors(const std::filesystem::path& path) {
  InputFile file(path);
  SafetensorsLayout layout = read_layout(file, path);
  ReadSafetensors result;
  result.content.metadata = std::move(layout.metadata);
  for (TensorEntry& entry : layout.tensors) {
    const at::Tensor tensor = at::empty(entry.shape, at::TensorOptions(scalar_types[entry.type]));
    file.read(bytes_of(tensor));
    if (tensor.scalar_type() == at::kBool) make_bools(bytes_of(tensor));
    result.content.tensors.emplace(std::move(entry.name), tensor);
  }
  result.digest = file.digest();
  return result;
}

}  // namespace checkpoint

void save_safetensors(const std::filesystem::path& path, const Safetensors& content) {
  checkpoint::replace_file(path,
                           [&](const std::filesystem::path& file) { checkpoint::write_safetensors(file, content); });
}

Safetensors load_safetensors(const std::filesystem::path& path) {
  return checkpoint::read_safetensors(path).content;
}

}  // namespace tutti
