#pragma once
// The job secret: a key that only the ranks of one job know. It authenticates their connections.
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "tutti/core/environment.h"

namespace tutti {

/// The variable with the secret, and the one with the path of a file that holds it. At most one of them may be set.
inline constexpr const char* secret_variable = "TUTTI_JOB_SECRET";
inline constexpr const char* secret_file_variable = "TUTTI_JOB_SECRET_FILE";

/// The variable that asks for encryption between ranks.
inline constexpr const char* encryption_variable = "TUTTI_ENCRYPTION";

/// No message or log line contains the secret.
class JobSecret {
 public:
  /// Strips surrounding spaces and line ends. `source` names the origin of the secret in messages. Throws UsageError if
  /// the secret is too short or too long.
  JobSecret(const std::string& text, std::string source);

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }
  const std::string& source() const { return source_; }
  /// The text, to pass to another process of the job.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string source_;
};
using JobSecretPtr = std::shared_ptr<const JobSecret>;

/// Reads the secret from the two variables; null if neither is set. Throws UsageError if both are set, the secret is
/// invalid, or other users may read the file.
JobSecretPtr read_job_secret(const VariableLookup& lookup);

/// Whether TUTTI_ENCRYPTION asks for encryption between ranks: 1 or true; 0, false, empty or unset for no. Throws
/// UsageError for another value.
bool read_encryption(const VariableLookup& lookup);

/// Creates a random secret. Throws std::system_error if the system provides no random numbers.
JobSecretPtr make_job_secret();

}  // namespace tutti
