#!/usr/bin/env bash
# Makes the site of the guides and the public headers in build/docs/site, and opens every page of it in a headless browser.
#   tools/docs.sh [REPORT.html ...]     opens these pages of `tutti report` too
# Fails on a warning of Doxygen or Sphinx, a public name without a comment, a broken link, an error on the browser's console,
# and content that does not fit a narrow window. Writes pictures of some pages to build/docs/pictures.
# TUTTI_BROWSER=/path uses an installed Chromium; otherwise Debian's is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/python.sh
site=tools/site
build=build/docs
python=.deps/docs/bin/python

set_up() {
  local packages=(doxygen)
  [[ -n ${TUTTI_BROWSER:-} ]] || packages+=(chromium-headless-shell)
  tools/packages.sh "${packages[@]}" ||
    { echo 'Where there is no package chromium-headless-shell, name a Chromium: TUTTI_BROWSER=/path ./dev docs' >&2; return 1; }
  python_packages .deps/docs --require-hashes -r $site/requirements.txt
}

# read_headers FOLDER OUT: runs Doxygen on the headers in FOLDER and writes OUT/xml. Its warnings are errors.
read_headers() {
  local folder=$1 out=$2
  mkdir -p "$out"
  # In detail/ only the headers with types that public headers give to users.
  {
    echo "@INCLUDE = $site/Doxyfile"
    echo "INPUT = $folder"
    echo "STRIP_FROM_PATH = $(dirname "$folder")"
    echo "OUTPUT_DIRECTORY = $out"
    echo "WARN_LOGFILE = $out/warnings"
    echo "EXCLUDE_PATTERNS = */detail/checkpoint/* */detail/comm/backend_status.h */detail/comm/gradient_communicator.h \
      */detail/core/crc32c.h */detail/data/epoch_cursor.h */detail/data/loader_a* */detail/data/loader_c* \
      */detail/data/loader_g* */detail/data/loader_i* */detail/data/prefetcher.h */detail/data/shard.h \
      */detail/data/stream_a* */detail/flight/* */detail/launch/* */detail/optim/* */detail/sync/reducer.h \
      */detail/tracking/* */detail/train/make_loader.h */detail/train/prepare* */detail/train/stage_clock.h"
  } >"$out/Doxyfile"
  doxygen "$out/Doxyfile"
  [[ ! -s $out/warnings ]] || { cat "$out/warnings" >&2; return 1; }
}

# A header with a name without a description must be refused.
self_test() {
  local folder=$build/self_test
  rm -rf $folder
  mkdir -p $folder/include/tutti/core
  printf '#pragma once\n// A header.\nnamespace tutti {\n/// A type.\nstruct Type {\n  int field = 0;\n};\n}  // namespace tutti\n' \
    >$folder/include/tutti/core/header.h
  read_headers $folder/include/tutti $folder/read
  if $python $site/reference.py $folder/read/xml $folder/include $folder/pages 2>$folder/said; then
    echo 'reference.py did not find a name without a comment' >&2
    return 1
  fi
  grep -q 'header.h:6: tutti::Type::field has no comment' $folder/said || { cat $folder/said >&2; return 1; }
  $python $site/check.py --self-test ${TUTTI_BROWSER:+--browser "$TUTTI_BROWSER"}
}

set_up
rm -rf $build/source $build/read $build/site
mkdir -p $build/source
self_test
read_headers include/tutti $build/read
$python $site/reference.py $build/read/xml include $build/source/reference
$python $site/pages.py $build/source
.deps/docs/bin/sphinx-build -q -W --keep-going -d $build/doctrees -c $site $build/source $build/site
$python $site/check.py ${TUTTI_BROWSER:+--browser "$TUTTI_BROWSER"} --pictures $build/pictures $build/site "$@"
