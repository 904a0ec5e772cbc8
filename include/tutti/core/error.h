#pragma once
// The exceptions of tutti. Each message says what happened, on which rank, and what to do.
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// Base class of all exceptions that tutti defines.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An invalid call or configuration: a wrong option, contradicting launch variables, a parameter outside the prepared
/// models. Thrown before any state changes; fix the program.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint or model file is missing, damaged, not written by tutti, or does not fit the model that loads it.
/// Nothing was loaded.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Ranks made different calls where all must make the same: different shapes in one collective, different models,
/// different numbers of backward passes in a step, replicas with different parameters. Thrown on every participating
/// rank.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// Another rank failed, exited, or aborted the communicator. Names the failed ranks as far as they are known. The text
/// of an error of a Communicator names ranks by their numbers in the job, also in groups of split() and subgroup().
class PeerError : public Error {
 public:
  /// `ranks`: see ranks().
  PeerError(const std::string& what, std::vector<int> ranks) : Error(what), ranks_(std::move(ranks)) {}
  /// The failed ranks, ascending; empty if unknown. They have the numbers of the communicator whose call failed, which
  /// in a group of split() or subgroup() differ from those in the text.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

/// An operation timed out before the named ranks entered it.
class TimeoutError : public PeerError {
 public:
  using PeerError::PeerError;
};

/// A file of training data is missing, damaged, or in another format than expected. The message is one line with the
/// file's name and the reason. No data of the file was returned.
class DataError : public Error {
 public:
  using Error::Error;
};

}  // namespace tutti
