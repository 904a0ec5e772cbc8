#include "nlp/pairs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "tutti/checkpoint/safetensors.h"

namespace tutti::bench {
namespace {

template <typename Change>
Pairs changed(const Pairs& pairs, Change change) {
  return {change(pairs.tokens), change(pairs.types), change(pairs.attended), change(pairs.labels)};
}

PairEpoch epoch_of(const Pairs& all, int rank, int world_size, int batch_size, int steps) {
  const auto mine =
      changed(all, [&](const at::Tensor& rows) { return rows.slice(0, rank, rows.size(0), world_size).contiguous(); });
  PairEpoch epoch{PairDataset(all), {}};
  const auto batches = mine.labels.size(0) / batch_size;
  for (std::int64_t i = 0; i < batches; ++i) {
    const bool ends_window = (i + 1) % steps == 0 || i + 1 == batches;
    epoch.batches.push_back({mine.narrow(i * batch_size, batch_size), ends_window});
  }
  return epoch;
}

}  // namespace

Pairs Pairs::narrow(std::int64_t first, std::int64_t count) const {
  return changed(*this, [&](const at::Tensor& rows) { return rows.narrow(0, first, count); });
}

Pairs to_device(Pairs pairs, const Placement& place) {
  return changed(pairs, place);
}

Pairs PairDataset::get_batch(const std::vector<std::size_t>& indices) {
  const std::vector<std::int64_t> numbers(indices.begin(), indices.end());
  const auto wanted = at::tensor(numbers, at::kLong);
  return changed(all_, [&](const at::Tensor& rows) { return rows.index_select(0, wanted); });
}

PairEpochs read_pairs(const std::filesystem::path& file, int rank, int world_size, int batch_size, int steps) {
  const auto tensors = load_safetensors(file).tensors;
  const auto part = [&](const std::string& name) {
    const Pairs all{tensors.at(name + ".input_ids"), tensors.at(name + ".token_type_ids"),
                    tensors.at(name + ".attention_mask"), tensors.at(name + ".labels")};
    return epoch_of(all, rank, world_size, batch_size, steps);
  };
  return {.warm_up = part("warm_up"), .timed = part("timed")};
}

}  // namespace tutti::bench
