#pragma once
// What the ranks of one job know, and nobody else: by it they recognise each other on a network.
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "tutti/core/environment.h"

namespace tutti {

/// The secret itself, and the name of the file that holds it. A program sets one of them at most.
inline constexpr const char* secret_variable = "TUTTI_JOB_SECRET";
inline constexpr const char* secret_file_variable = "TUTTI_JOB_SECRET_FILE";

/// Nothing prints it.
class JobSecret {
 public:
  /// Spaces and line ends around it do not count. `source` says where it comes from, for people. Throws UsageError
  /// where it is too short to be one, or too long.
  JobSecret(const std::string& text, std::string source);

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }
  const std::string& source() const { return source_; }
  /// For another process of the job.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string source_;
};
using JobSecretPtr = std::shared_ptr<const JobSecret>;

/// The secret that these variables give; null where they give none. Throws UsageError where they make no sense, and
/// where others may read the file.
JobSecretPtr read_job_secret(const VariableLookup& lookup);

/// A new one that nobody can guess. Throws std::system_error where the system gives no random numbers.
JobSecretPtr make_job_secret();

}  // namespace tutti
