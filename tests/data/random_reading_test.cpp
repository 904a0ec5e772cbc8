// Random programs that read epochs in pieces: loops are left early and resumed, on the same or on other numbers of
// ranks, with any options. Ranks are loaders in one process that do not communicate. A failure names its seed:
// TUTTI_SEED=n replays it, TUTTI_MOVES=m runs m programs from there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "data/numbers.h"
#include "data/streams.h"
#include "support/replay.h"
#include "tutti/core/error.h"
#include "tutti/detail/data/loader_position.h"

namespace tutti::test::random_reading_test {
namespace {

enum class Source { dataset, sampler, batch_sampler, stream };

/// A part of an epoch that one job reads.
struct Piece {
  int world_size = 1;
  std::int64_t batch_size = 1;  ///< of a rank
  std::int64_t accumulation_steps = 1;
  std::int64_t batches = -1;  ///< of each rank; -1: the rest of the epoch
};

struct ReadingProgram {
  Source source = Source::dataset;
  int samples = 1;
  bool shuffle = false;
  bool drop_last = false;
  EpochTail tail = EpochTail::repeat;
  bool split_batches = false;
  Sharding sharding = Sharding::interleaved;
  int workers = 0;
  std::vector<Piece> pieces;  // the pieces of one epoch after the other; the last one ends an epoch
};

/// What one rank has read of an epoch.
struct Read {
  std::vector<int> samples;        ///< without repeats and filler batches
  std::vector<int> repeats;        ///< of both
  Batches batches;                 ///< all
  std::vector<std::int64_t> real;  ///< by batch: the number of samples that are neither
};

class ProgramGenerator {
 public:
  explicit ProgramGenerator(std::uint64_t seed) : random_(seed) {}

  ReadingProgram program() {
    ReadingProgram program;
    program.source =
        pick<Source>({Source::dataset, Source::dataset, Source::sampler, Source::batch_sampler, Source::stream});
    program.samples = 1 + static_cast<int>(below(chance(50) ? 12 : 60));
    program.shuffle = program.source == Source::dataset && chance(70);
    program.drop_last = chance(30);
    program.tail = pick<EpochTail>({EpochTail::repeat, EpochTail::repeat, EpochTail::shorten, EpochTail::join});
    if (program.drop_last) program.tail = EpochTail::repeat;
    program.split_batches = program.source != Source::batch_sampler && chance(25);
    program.sharding = pick<Sharding>({Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window});
    program.workers = chance(20) ? 1 : 0;
    const bool same = chance(40);
    Piece shape = piece(program);
    for (std::uint64_t epochs = 1 + below(3); epochs > 0; --epochs) {
      // Without repeats one rank's loop may end where the others have a batch more.
      for (std::uint64_t pieces = program.tail == EpochTail::shorten ? 0 : below(4); pieces > 0; --pieces) {
        program.pieces.push_back(same ? shape : piece(program));
        program.pieces.back().batches = 1 + static_cast<std::int64_t>(below(5));
      }
      program.pieces.push_back(same ? shape : piece(program));
    }
    return program;
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <typename T>
  T pick(const std::vector<T>& values) {
    return values[below(values.size())];
  }
  Piece piece(const ReadingProgram& program) {
    Piece piece{.world_size = 1 + static_cast<int>(below(4)), .batch_size = 1 + static_cast<std::int64_t>(below(4))};
    if (program.source == Source::batch_sampler) piece.batch_size = 1;
    if (program.sharding == Sharding::blocks_by_window)
      piece.accumulation_steps = 1 + static_cast<std::int64_t>(below(3));
    return piece;
  }
  std::mt19937_64 random_;
};

std::string describe(const ReadingProgram& program) {
  const std::vector<std::string> sources{"dataset", "sampler", "batch sampler", "stream"};
  const std::vector<std::string> shardings{"interleaved", "batches", "blocks"};
  const std::vector<std::string> tails{"repeat", "shorten", "join"};
  std::ostringstream text;
  text << sources[static_cast<std::size_t>(program.source)] << " of " << program.samples
       << (program.shuffle ? ", shuffled" : "") << (program.drop_last ? ", drop_last" : "") << ", "
       << tails[static_cast<std::size_t>(program.tail)] << (program.split_batches ? ", split" : "") << ", "
       << shardings[static_cast<std::size_t>(program.sharding)] << ", " << program.workers << " workers\n";
  for (const Piece& piece : program.pieces) {
    text << piece.batches << " batches of " << piece.batch_size << " on " << piece.world_size << " ranks, windows of "
         << piece.accumulation_steps << '\n';
  }
  return text.str();
}

/// Each epoch leaves samples out, repeats some, and is in another order.
std::vector<std::int64_t> sampled(int samples, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < samples; ++i) order.push_back((i * 7 + epoch) % samples);
  return order;
}

std::vector<std::vector<std::int64_t>> sampled_batches(int samples, std::int64_t epoch) {
  std::vector<std::vector<std::int64_t>> batches;
  for (const std::int64_t sample : sampled(samples, epoch)) {
    if (batches.empty() || static_cast<std::int64_t>(batches.back().size()) > sample % 3) batches.emplace_back();
    batches.back().push_back(sample);
  }
  return batches;
}

template <typename Action>
void with_loader(const ReadingProgram& program, const Piece& piece, int rank, const std::shared_ptr<LoaderStack>& stack,
                 const Action& action) {
  const std::int64_t batch_size = program.split_batches ? piece.batch_size * piece.world_size : piece.batch_size;
  const bool even = program.tail == EpochTail::repeat;
  if (program.source == Source::stream) {
    StreamLoader<Counting> loader(Counting(program.samples, 0, 3),
                                  {.batch_size = batch_size,
                                   .drop_last = program.drop_last,
                                   .split_batches = program.split_batches,
                                   .even_batches = even,
                                   .num_workers = program.workers},
                                  {.rank = rank, .world_size = piece.world_size, .stack = stack});
    return action(loader);
  }
  DataLoaderOptions options{.shuffle = program.shuffle,
                            .seed = 3,
                            .sharding = program.sharding,
                            .drop_last = program.drop_last,
                            .even_batches = even,
                            .num_workers = program.workers};
  const int samples = program.samples;
  if (program.source == Source::batch_sampler) {
    options.batch_sampler = [samples](std::int64_t epoch) { return sampled_batches(samples, epoch); };
  } else {
    options.batch_size = batch_size;
    options.split_batches = program.split_batches;
  }
  if (program.source == Source::sampler)
    options.sampler = [samples](std::int64_t epoch) { return sampled(samples, epoch); };
  DataLoader<Numbers> loader(Numbers(samples), options, rank, piece.world_size, piece.accumulation_steps, stack);
  action(loader);
}

/// The samples of an epoch in the order of one process.
std::vector<int> order_of(const ReadingProgram& program, std::int64_t epoch) {
  ReadingProgram plain = program;
  plain.drop_last = plain.split_batches = false;
  plain.tail = EpochTail::repeat;
  std::vector<int> order;
  with_loader(plain, {}, 0, std::make_shared<LoaderStack>(), [&](auto& loader) {
    loader.set_epoch(epoch);
    for (const auto& batch : read(loader)) order.insert(order.end(), batch.begin(), batch.end());
  });
  return order;
}

class ReadingRun {
 public:
  explicit ReadingRun(const ReadingProgram& program) : program_(program) {}

  /// Returns the failure; empty if the program passed.
  std::string run() {
    for (const Piece& piece : program_.pieces) {
      if (first_) epoch_ = Epoch{};
      if (const std::string wrong = run_piece(piece); !wrong.empty()) {
        return "epoch " + std::to_string(number_) + ": " + wrong;
      }
    }
    return "";
  }

 private:
  struct Epoch {
    std::vector<int> samples{};
    std::vector<int> repeats{};
    std::vector<Piece> pieces{};
    std::vector<Batches> by_rank{};  // if all pieces have one shape
  };

  std::string run_piece(const Piece& piece) {
    std::vector<Read> ranks;
    std::vector<StateDict> states;
    bool ended = false;
    for (int rank = 0; rank < piece.world_size; ++rank) {
      try {
        ranks.push_back(read_rank(piece, rank, states, ended));
      } catch (const UsageError& error) {
        // The only error that the generator does not avoid.
        const std::string why = error.what();
        if (program_.drop_last && why.find("drop_last") != std::string::npos) return "";
        return "an error: " + why;
      }
    }
    const auto fewest = std::ranges::min(ranks, {}, [](const Read& read) { return read.batches.size(); });
    const auto most = std::ranges::max(ranks, {}, [](const Read& read) { return read.batches.size(); });
    if (program_.tail != EpochTail::shorten && fewest.batches.size() != most.batches.size())
      return "ranks have different numbers of batches";
    for (const Read& read : ranks) {
      epoch_.samples.insert(epoch_.samples.end(), read.samples.begin(), read.samples.end());
      epoch_.repeats.insert(epoch_.repeats.end(), read.repeats.begin(), read.repeats.end());
    }
    const auto order = order_of(program_, number_);
    if (first_) {
      if (const std::string wrong = check_rounds(piece, ranks, order); !wrong.empty()) return wrong;
    }
    epoch_.pieces.push_back(piece);
    if (first_) epoch_.by_rank.resize(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size() && rank < epoch_.by_rank.size(); ++rank) {
      auto& all = epoch_.by_rank[rank];
      all.insert(all.end(), ranks[rank].batches.begin(), ranks[rank].batches.end());
    }
    state_ = states.front();
    first_ = ended;
    if (!ended) return "";
    const std::string wrong = check_epoch(order);
    ++number_;
    return wrong;
  }

  Read read_rank(const Piece& piece, int rank, std::vector<StateDict>& states, bool& ended) {
    Read read;
    const auto stack = std::make_shared<LoaderStack>();
    std::optional<JoinScope> join;
    if (program_.tail == EpochTail::join) join.emplace(stack);
    with_loader(program_, piece, rank, stack, [&](auto& loader) {
      if (!state_.empty()) loader.load_state_dict(state_);
      if (loader.epoch() != number_) throw UsageError("the loader is in epoch " + std::to_string(loader.epoch()));
      std::int64_t size = 0;
      if constexpr (requires { loader.size(); }) size = loader.size();
      StateDict state;
      bool left = false;
      for (const auto& batch : loader) {
        const LoaderPosition at = stack->innermost();
        const std::int64_t real = at.filler ? 0 : static_cast<std::int64_t>(batch.size()) - at.repeated;
        read.samples.insert(read.samples.end(), batch.begin(), batch.begin() + real);
        read.repeats.insert(read.repeats.end(), batch.begin() + real, batch.end());
        read.batches.push_back(batch);
        read.real.push_back(real);
        state = loader.state_dict();
        if (static_cast<std::int64_t>(read.batches.size()) == piece.batches && !at.last_batch) {
          left = true;
          break;
        }
      }
      if (!left) state = loader.state_dict();
      ended = ended || !left;
      states.push_back(state);
      if constexpr (requires { loader.size(); }) {
        const auto count = static_cast<std::int64_t>(read.batches.size());
        if (first_ && !left && size != count)
          throw UsageError("size() was " + std::to_string(size) + " for " + std::to_string(count) + " batches");
      }
    });
    return read;
  }

  /// All ranks together read the epoch's order, one round after the other.
  std::string check_rounds(const Piece& piece, const std::vector<Read>& ranks, const std::vector<int>& order) const {
    const bool by_windows = program_.source != Source::stream && program_.sharding == Sharding::blocks_by_window;
    if (by_windows || program_.source == Source::batch_sampler) return "";
    for (std::size_t round = 0; round < ranks[0].batches.size(); ++round) {
      std::multiset<int> read;
      for (const Read& rank : ranks) {
        if (round >= rank.batches.size()) continue;
        read.insert(rank.batches[round].begin(), rank.batches[round].begin() + rank.real[round]);
      }
      const auto size = static_cast<std::size_t>(piece.world_size * piece.batch_size);
      const std::size_t begin = std::min(round * size, order.size());
      const std::size_t end = std::min(begin + size, order.size());
      const std::multiset<int> expected(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                        order.begin() + static_cast<std::ptrdiff_t>(end));
      if (read != expected) return "round " + std::to_string(round) + " has other samples";
    }
    return "";
  }

  std::string check_epoch(const std::vector<int>& order) const {
    const std::multiset<int> expected(order.begin(), order.end());
    const std::multiset<int> read(epoch_.samples.begin(), epoch_.samples.end());
    std::vector<int> missing;
    std::ranges::set_difference(expected, read, std::back_inserter(missing));
    std::vector<int> surplus;
    std::ranges::set_difference(read, expected, std::back_inserter(surplus));
    if (!surplus.empty()) return "samples were read twice, first " + std::to_string(surplus[0]);
    if (!missing.empty() && !program_.drop_last) return "samples were not read, first " + std::to_string(missing[0]);
    const Piece& last = epoch_.pieces.back();
    if (program_.source != Source::batch_sampler && std::ssize(missing) >= last.world_size * last.batch_size)
      return std::to_string(missing.size()) + " samples were dropped";
    const std::set<int> all(order.begin(), order.end());
    for (const int repeat : epoch_.repeats) {
      if (!all.contains(repeat)) return "a repeat of a sample that the epoch does not have";
    }
    return check_uninterrupted();
  }

  /// Pieces of one shape read what one loop reads.
  std::string check_uninterrupted() const {
    const Piece& shape = epoch_.pieces.front();
    const auto is_same = [&shape](const Piece& piece) {
      return piece.world_size == shape.world_size && piece.batch_size == shape.batch_size &&
             piece.accumulation_steps == shape.accumulation_steps;
    };
    if (!std::ranges::all_of(epoch_.pieces, is_same)) return "";
    for (int rank = 0; rank < shape.world_size; ++rank) {
      const auto stack = std::make_shared<LoaderStack>();
      std::optional<JoinScope> join;
      if (program_.tail == EpochTail::join) join.emplace(stack);
      std::string wrong;
      with_loader(program_, shape, rank, stack, [&](auto& loader) {
        loader.set_epoch(number_);
        if (read(loader) != epoch_.by_rank[static_cast<std::size_t>(rank)])
          wrong = "rank " + std::to_string(rank) + " has other batches than a loop that is not interrupted";
      });
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

  const ReadingProgram& program_;
  StateDict state_;
  std::int64_t number_ = 0;
  bool first_ = true;  // the next piece begins an epoch
  Epoch epoch_;
};

TEST(RandomReading, ReadsEverySampleOfAnEpochInThePlacesOfOneProcess) {
  const auto [first, programs] = seeds_to_run(1500);
  for (std::uint64_t seed = first; seed < first + programs; ++seed) {
    const ReadingProgram program = ProgramGenerator(seed).program();
    ASSERT_EQ(ReadingRun(program).run(), "") << "replay it with TUTTI_SEED=" << seed << '\n' << describe(program);
  }
}

}  // namespace
}  // namespace tutti::test::random_reading_test
