#include "train/accelerator_moves.h"

#include <array>
#include <random>
#include <sstream>
#include <utility>

namespace tutti::test {

namespace {

class TrainingGenerator {
 public:
  TrainingGenerator(std::uint64_t seed, int ranks) : random_(seed) {
    program_.seed = seed;
    program_.ranks = ranks;
  }

  TrainingProgram program() {
    program_.policy = chance(60) ? SyncPolicy::automatic : SyncPolicy::every_pass;
    program_.buffer_sync = chance(60) ? BufferSync::broadcast : BufferSync::mean;
    program_.is_complex = chance(50);
    program_.buckets = {.first_bucket_bytes = chance(50) ? 1 : 200, .bucket_bytes = chance(50) ? 100 : 1 << 20};
    passes_ = 1 + static_cast<int>(below(2));
    for (std::uint64_t i = 0, count = 3 + below(5); i < count; ++i) make_iteration();
    return std::move(program_);
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(unsigned percent) { return below(100) < percent; }

  void add(TrainingVerb verb, int part = 0) { moves_.push_back({.verb = verb, .part = part, .seed = random_()}); }

  void make_iteration() {
    moves_.clear();
    const bool is_refused = add_change();
    for (int pass = 0; pass + 1 < passes_; ++pass) {
      add(TrainingVerb::forward);
      add(TrainingVerb::backward, 0);
      add(TrainingVerb::backward, 1);
    }
    add(TrainingVerb::forward);
    const int first = static_cast<int>(below(2));
    if (chance(40)) {
      for (const int part : {first, 1 - first}) add(TrainingVerb::backward, part);
      for (const int part : {first, 1 - first}) add_step(part);
    } else {
      // The second part's backward pass runs on a forward pass that precedes the first part's step.
      for (const int part : {first, 1 - first}) {
        add(TrainingVerb::backward, part);
        add_step(part);
      }
    }
    if (chance(30)) {
      const TrainingMove gather{.verb = TrainingVerb::gather, .seed = random_()};
      moves_.insert(moves_.begin() + static_cast<std::ptrdiff_t>(below(moves_.size() + 1)), gather);
    }
    // safetensors has no double complex numbers.
    if (!is_refused && !program_.is_complex && chance(30)) add_resume();
    program_.iterations.push_back({.moves = moves_, .is_refused = is_refused});
  }

  /// The process that resumes has no forward pass yet, so a forward pass or the next iteration must follow.
  void add_resume() {
    std::vector<std::size_t> places{moves_.size()};
    for (std::size_t i = 0; i < moves_.size(); ++i) {
      if (moves_[i].verb == TrainingVerb::forward) places.push_back(i);
    }
    const TrainingMove resume{.verb = TrainingVerb::resume, .seed = random_()};
    moves_.insert(moves_.begin() + static_cast<std::ptrdiff_t>(places[below(places.size())]), resume);
  }

  void add_step(int part) {
    if (chance(25)) add(TrainingVerb::clip, part);
    add(TrainingVerb::step, part);
    add(TrainingVerb::zero, part);
  }

  /// Perhaps changes a part. Returns true if the change must be refused.
  bool add_change() {
    const int part = static_cast<int>(below(2));
    if (chance(15)) {
      const bool is_refused = program_.ranks > 1 && chance(40);
      add(is_refused ? TrainingVerb::set_rate_of_one_rank : TrainingVerb::set_rate, part);
      return is_refused;
    }
    if (!chance(30)) return false;
    const bool unfreezes = frozen_[part] && chance(60);
    add(unfreezes ? TrainingVerb::unfreeze : TrainingVerb::add_layer, part);
    frozen_[part] = frozen_[part] && !unfreezes;
    if (chance(35)) return true;
    add(TrainingVerb::prepare);
    return false;
  }

  std::mt19937_64 random_;
  TrainingProgram program_;
  std::vector<TrainingMove> moves_;
  std::array<bool, 2> frozen_{true, true};
  int passes_ = 1;
};

}  // namespace

TrainingProgram random_training(std::uint64_t seed, int ranks) {
  return TrainingGenerator(seed, ranks).program();
}

std::string describe(const TrainingProgram& program) {
  const std::array names{"forward",
                         "backward",
                         "clip",
                         "step",
                         "zero_grad",
                         "gather",
                         "unfreeze",
                         "add_layer",
                         "prepare",
                         "set_rate",
                         "set_rate_of_one_rank",
                         "resume"};
  const std::array policies{"every pass", "manual", "automatic"};
  std::ostringstream text;
  text << "seed " << program.seed << ", " << program.ranks << " ranks, "
       << policies[static_cast<std::size_t>(program.policy)] << ", buffers "
       << (program.buffer_sync == BufferSync::mean ? "averaged" : "of rank 0")
       << (program.is_complex ? ", complex parameters\n" : "\n");
  for (const TrainingIteration& iteration : program.iterations) {
    for (const TrainingMove& move : iteration.moves) {
      text << names[static_cast<std::size_t>(move.verb)];
      switch (move.verb) {
        case TrainingVerb::forward:
        case TrainingVerb::gather:
        case TrainingVerb::prepare:
        case TrainingVerb::resume:
          break;
        default:
          text << ' ' << move.part;
      }
      text << "; ";
    }
    text << (iteration.is_refused ? "must be refused\n" : "\n");
  }
  return text.str();
}

}  // namespace tutti::test
