#pragma once
// Reads a stream on one rank, round by round. In a round every rank gets one batch.
#include <ATen/core/TensorBody.h>
#include <torch/data/example.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/detail/data/dataset_members.h"
#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/stream_cursor.h"

namespace tutti {

namespace detail {

template <typename T>
struct optional_value {};
template <typename T>
struct optional_value<std::optional<T>> {
  using type = T;
};

template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};

inline std::int64_t samples_of(const at::Tensor& batch) {
  return batch.dim() == 0 ? 1 : batch.sizes()[0];
}
template <typename T>
std::int64_t samples_of(const std::vector<T>& batch) {
  return static_cast<std::int64_t>(batch.size());
}
template <typename Target>
std::int64_t samples_of(const torch::data::Example<at::Tensor, Target>& batch) {
  return samples_of(batch.data);
}
template <typename First, typename Second>
auto samples_of(const std::pair<First, Second>& batch) -> decltype(samples_of(batch.first)) {
  return samples_of(batch.first);
}
template <typename First, typename... Rest>
auto samples_of(const std::tuple<First, Rest...>& batch) -> decltype(samples_of(std::get<0>(batch))) {
  return samples_of(std::get<0>(batch));
}
template <typename Key, typename Value>
auto samples_of(const std::map<Key, Value>& batch) -> decltype(samples_of(batch.begin()->second)) {
  std::int64_t most = 0;  // a value may be one for the whole batch
  for (const auto& [key, value] : batch) most = std::max(most, samples_of(value));
  return most;
}

}  // namespace detail

/// A dataset whose get_batch(batch_size) returns the next batch_size samples, or nullopt at the end:
/// torch::data::datasets::StatefulDataset, ChunkDataset with the same batch size, or a user-defined class. It must
/// return the same samples in each pass of one epoch, and with StreamSharding::slices on all ranks. A loop first calls
/// set_epoch(epoch) and then reset(), if the dataset has them. Without reset() a second loop continues at the stream's
/// position: after all samples that were read ahead, if the first loop was left early. A loop that resumes within an
/// epoch reads the samples before its position and drops them. If the dataset has skip(samples), it calls that instead,
/// after the first batches: the next get_batch() returns the samples that follow, or nullopt if fewer are left. A
/// dataset with skip() must return batch_size samples from each get_batch() before its end.
template <typename Dataset>
concept StreamDataset = requires(Dataset& dataset, std::size_t batch_size) {
  typename detail::optional_value<decltype(dataset.get_batch(batch_size))>::type;
};

/// A dataset whose get_batch() is a collective, as its member reading_is_collective says. A thread must not read it
/// ahead: if a loop is left early, some ranks would wait for the others.
template <typename Dataset>
concept CollectiveStream = Dataset::reading_is_collective;

/// Number of samples in a batch. Known for vectors, tensors and Examples of tensors (size of the first dimension); for
/// pairs, tuples and maps of these, by their first element, or the longest value of a map; and for types with an
/// overload of num_samples(batch) in their namespace. nullopt for other types, whose batches count as full.
template <typename Batch>
std::optional<std::int64_t> samples_in(const Batch& batch) {
  if constexpr (requires {
                  { num_samples(batch) } -> std::convertible_to<std::int64_t>;
                }) {
    return num_samples(batch);
  } else if constexpr (requires { detail::samples_of(batch); }) {
    return detail::samples_of(batch);
  } else {
    return std::nullopt;
  }
}

/// This rank's part of a round.
template <typename Batch>
struct StreamPart {
  std::optional<Batch> batch{};  ///< nullopt: only other ranks have a batch
  std::int64_t repeated = 0;     ///< number of samples at the batch's end that repeat the stream's first ones
  bool all_repeated = false;     ///< the whole batch repeats, whether or not its number of samples is known
  bool filler = false;           ///< EpochTail::join: a filler batch, with weight 0
  bool uneven = false;           ///< some ranks have no batch in this round
  bool last = false;             ///< the stream ends with this round
};

struct StreamShardOptions {
  StreamSharding sharding = StreamSharding::slices;
  int rank = 0;
  int world_size = 1;
  std::int64_t batch_size = 1;
  bool drop_last = false;
  EpochTail tail = EpochTail::repeat;
};

/// Reads rounds from a dataset, which must outlive it. Ranks do not communicate: the batches of other ranks are known
/// only if all ranks have the same stream.
template <StreamDataset Dataset>
class StreamReading {
 public:
  using Batch = typename detail::optional_value<decltype(std::declval<Dataset&>().get_batch(std::size_t{1}))>::type;
  using Part = StreamPart<Batch>;

  /// Continues after the segments `read`.
  StreamReading(Dataset& dataset, const StreamShardOptions& shard_options, std::int64_t epoch,
                std::vector<EpochSegment> read)
      : dataset_(dataset), shard_options_(shard_options), epoch_(epoch), read_(std::move(read)) {}

  /// Returns the next part, or nullopt at the stream's end: for all ranks with StreamSharding::slices, else for this
  /// rank. The first call begins the stream's epoch.
  std::optional<Part> next() {
    begin_epoch();
    skip_read_batches();
    while (!ended_) {
      const RoundSize size = round_size(shard_options_.world_size, shard_options_.batch_size);
      std::vector<Batch> global_batch = read_global_batch(size);
      if (global_batch.empty()) break;
      if (shard_options_.drop_last && !complete(global_batch, size)) continue;
      return part_of(std::move(global_batch));
    }
    return std::nullopt;
  }

  /// A filler batch of the stream's first samples; nullopt if the stream had none.
  std::optional<Part> filler() const {
    if (first_.empty()) return std::nullopt;
    return part_of_first(static_cast<std::size_t>(shard_options_.rank), true);
  }

 private:
  struct RoundSize {
    std::size_t batches;
    std::int64_t batch_size;
  };
  RoundSize round_size(int world_size, std::int64_t batch_size) const {
    const int batches = shard_options_.sharding == StreamSharding::slices ? world_size : 1;
    return {.batches = static_cast<std::size_t>(batches), .batch_size = batch_size};
  }
  std::size_t width() const { return round_size(shard_options_.world_size, shard_options_.batch_size).batches; }

  void begin_epoch() {
    if (std::exchange(has_begun_, true)) return;
    detail::set_epoch_of(dataset_, epoch_);
    if constexpr (requires { dataset_.reset(); }) dataset_.reset();
  }

  /// Returns `size` samples, or fewer at the stream's end.
  std::optional<Batch> read_batch(std::int64_t size) {
    const auto count = static_cast<std::size_t>(size);
    if constexpr (!detail::is_vector<Batch>::value) {
      std::optional<Batch> batch = dataset_.get_batch(count);
      if (!batch) ended_ = true;
      return batch;
    } else {
      // Also for batches that were read with another batch size: ChunkDataset accepts no other number.
      const auto request = static_cast<std::size_t>(shard_options_.batch_size);
      Batch batch = std::exchange(surplus_, {});
      bool is_joined = !batch.empty() || request != count;
      while (batch.size() < count && !ended_) {
        auto more = dataset_.get_batch(request);
        ended_ = !more || more->empty();
        if (ended_) break;
        if (batch.empty()) {
          batch = std::move(*more);
        } else {
          is_joined = true;
          batch.insert(batch.end(), std::make_move_iterator(more->begin()), std::make_move_iterator(more->end()));
        }
      }
      if (is_joined && batch.size() > count) {
        const auto rest = batch.begin() + static_cast<std::ptrdiff_t>(count);
        surplus_.assign(std::make_move_iterator(rest), std::make_move_iterator(batch.end()));
        batch.erase(rest, batch.end());
      }
      return batch.empty() ? std::nullopt : std::optional<Batch>(std::move(batch));
    }
  }

  void store_first_batches(const Batch& batch) {
    if (first_.size() < width()) first_.push_back(batch);
  }

  /// Rounds that drop_last leaves out are read again but not counted, as in the loop that read them.
  void skip_read_batches() {
    for (const EpochSegment& segment : std::exchange(read_, {})) {
      const RoundSize size = round_size(segment.world_size, segment.batch_size);
      for (std::int64_t rounds = 0; rounds < segment.batches && !ended_;) {
        if constexpr (detail::can_skip<Dataset>) {
          if (first_.size() == width()) {  // the end of the stream may repeat its first batches
            const auto in_round = static_cast<std::int64_t>(size.batches) * size.batch_size;
            constexpr std::int64_t most = std::int64_t{1} << 62;  // more than any stream has
            const std::int64_t left = segment.batches - rounds;
            skip(static_cast<std::size_t>(left > most / in_round ? most : left * in_round));
            break;
          }
        }
        const std::vector<Batch> global_batch = read_global_batch(size);
        if (!shard_options_.drop_last || complete(global_batch, size)) ++rounds;
      }
    }
  }

  void skip(std::size_t samples) {
    if constexpr (detail::is_vector<Batch>::value) {
      const std::size_t known = std::min(samples, surplus_.size());
      surplus_.erase(surplus_.begin(), surplus_.begin() + static_cast<std::ptrdiff_t>(known));
      samples -= known;
    }
    if (samples > 0) detail::skip_samples(dataset_, samples);
  }

  std::vector<Batch> read_global_batch(const RoundSize& size) {
    std::vector<Batch> global_batch;
    while (global_batch.size() < size.batches && !ended_) {
      std::optional<Batch> batch = read_batch(size.batch_size);
      if (!batch) break;
      store_first_batches(*batch);
      global_batch.push_back(std::move(*batch));
    }
    return global_batch;
  }

  static bool complete(const std::vector<Batch>& global_batch, const RoundSize& size) {
    return global_batch.size() == size.batches && std::ranges::all_of(global_batch, [&size](const Batch& batch) {
             return samples_in(batch).value_or(size.batch_size) >= size.batch_size;
           });
  }

  Part part_of(std::vector<Batch> global_batch) const {
    const auto local =
        shard_options_.sharding == StreamSharding::slices ? static_cast<std::size_t>(shard_options_.rank) : 0;
    Part part;
    if (shard_options_.sharding == StreamSharding::slices &&
        !complete(global_batch, round_size(shard_options_.world_size, shard_options_.batch_size))) {
      if constexpr (detail::is_vector<Batch>::value) {
        if (shard_options_.tail == EpochTail::repeat) return filled(global_batch);
      }
      const bool has_gap = global_batch.size() < width();
      if (local >= global_batch.size()) {
        if (shard_options_.tail == EpochTail::repeat) part = part_of_first(local - global_batch.size(), false);
        if (shard_options_.tail == EpochTail::join) part = part_of_first(local, true);
      }
      part.uneven = has_gap && shard_options_.tail == EpochTail::shorten;
    }
    if (local < global_batch.size()) part.batch = std::move(global_batch[local]);
    part.last = ended_;
    return part;
  }

  Part part_of_first(std::size_t index, bool filler) const {
    Part part{.batch = first_[index % first_.size()], .all_repeated = true, .filler = filler};
    part.repeated = samples_in(*part.batch).value_or(0);
    return part;
  }

  /// An incomplete round of vectors, filled with the stream's first samples, which are repeated as often as needed.
  Part filled(const std::vector<Batch>& global_batch) const {
    Batch samples;
    for (const Batch& batch : global_batch) samples.insert(samples.end(), batch.begin(), batch.end());
    Batch fill;
    for (const Batch& batch : first_) fill.insert(fill.end(), batch.begin(), batch.end());
    const auto count = static_cast<std::int64_t>(samples.size());
    Part part{.batch = Batch(), .last = true};
    for (auto place = shard_options_.rank * shard_options_.batch_size;
         place < (shard_options_.rank + 1) * shard_options_.batch_size; ++place) {
      const auto repeat = static_cast<std::size_t>(std::max<std::int64_t>(0, place - count));
      part.batch->push_back(place < count ? samples[static_cast<std::size_t>(place)] : fill[repeat % fill.size()]);
      part.repeated += place < count ? 0 : 1;
    }
    return part;
  }

  Dataset& dataset_;
  StreamShardOptions shard_options_;
  std::int64_t epoch_;
  bool has_begun_ = false;
  std::vector<EpochSegment> read_;
  std::vector<Batch> first_;  // the stream's first batches, at most width()
  std::conditional_t<detail::is_vector<Batch>::value, Batch, std::monostate> surplus_{};  // read for the next batch
  bool ended_ = false;
};

}  // namespace tutti
