#pragma once
// The exceptions of tutti. Each message says what happened, on which rank, and what to do.
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// Base of everything tutti throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The program asked for something that cannot be done: a wrong option, contradicting launch variables, a parameter
/// outside the prepared models. Thrown before anything was changed; fix the program.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint or a model's file is missing, damaged, foreign, or does not fit what it is loaded into. Nothing of it
/// was loaded.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Ranks did different things where they must do the same: other shapes in one collective, other models, another
/// number of backward passes in a step, parameters that drifted apart. Thrown on every rank that takes part.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// Another rank died, left, or gave up. Names the ranks at fault as far as they are known.
class PeerError : public Error {
 public:
  /// `ranks`: those at fault, ascending; empty where they are not known.
  PeerError(const std::string& what, std::vector<int> ranks) : Error(what), ranks_(std::move(ranks)) {}
  /// Ranks at fault, ascending; empty when they could not be told.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

/// A deadline passed before the named ranks arrived.
class TimeoutError : public PeerError {
 public:
  using PeerError::PeerError;
};

}  // namespace tutti
