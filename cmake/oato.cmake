# What every room's CMakeLists.txt uses: one function per kind of target, so that
# flags, include paths and the "links only what it may use" rule are said once.
include_guard()

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # POSIX 2008 and GNU names (mremap, syncfs) through glibc
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(OPENBLAS REQUIRED openblas) # its headers: the library is opened when it is used
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(CURL IMPORTED_TARGET libcurl>=7.68) # with OpenSSL's libcrypto: models can be fetched
pkg_check_modules(CRYPTO IMPORTED_TARGET libcrypto)
find_library(GLPK_LIBRARY glpk REQUIRED)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# What each room shows to those that use it, by the name in which they include it.
set(OATO_SHOWS_base base/base.h base/list.h base/json_cost.h base/dtypes.h base/pages.h)
set(OATO_SHOWS_net net/net.h net/head.h net/connections.h)
set(OATO_SHOWS_jinja text/jinja/jinja.h)
set(OATO_SHOWS_op kernels/op.h kernels/sums.h kernels/activation.h)
set(OATO_SHOWS_kernels kernels/op.h kernels/sums.h kernels/activation.h kernels/program.h kernels/device.h kernels/ranks/collective.h)
set(OATO_SHOWS_models models/models.h)
set(OATO_SHOWS_text text/text.h text/sampler.h text/sampling.h text/sampling_json.h text/grammar.h text/stops.h text/thinking.h text/chat_messages.h text/chat_prompt.h text/json_members.h text/json_values.h)
set(OATO_SHOWS_planfmt planfmt/planfmt.h planfmt/export.h)
set(OATO_SHOWS_lowering lowering/lowering.h kernels/program.h)
set(OATO_SHOWS_executor executor/executor.h executor/batch.h executor/restore.h executor/scheduler.h executor/session.h executor/session_options.h executor/text_file.h executor/text_slots.h executor/model_room.h executor/turns.h)
set(OATO_SHOWS_profiler profiler/profiler.h)
set(OATO_SHOWS_solver solver/solver.h)
set(OATO_SHOWS_front front/auto.h)
set(OATO_SHOWS_server server/server.h)

# oato_closure(ROOMS): the list grows by the rooms that those in it use, however far to the left.
function(oato_closure list)
  set(found "")
  set(rooms ${${list}})
  while(rooms)
    list(POP_FRONT rooms room)
    if(NOT room IN_LIST found)
      list(APPEND found ${room})
      list(APPEND rooms ${OATO_USES_${room}})
    endif()
  endwhile()
  set(${list} ${found} PARENT_SCOPE)
endfunction()

# oato_sees(TARGET VIEW OWN USES...): the target finds its own headers (files or a folder of the source
# tree) and those that the rooms it uses show, however far to the left, and no others: an include that
# DESIGN's table of rooms forbids does not compile. VIEW is a folder of links to them.
function(oato_sees target view own)
  set(visible ${own} ${OATO_SHOWS_${view}})
  set(rooms ${ARGN})
  oato_closure(rooms)
  foreach(room IN LISTS rooms)
    list(APPEND visible ${OATO_SHOWS_${room}})
  endforeach()
  list(REMOVE_DUPLICATES visible)
  set(folder ${CMAKE_BINARY_DIR}/rooms/${view})
  file(REMOVE_RECURSE ${folder})
  foreach(path IN LISTS visible)
    get_filename_component(parent ${folder}/${path} DIRECTORY)
    string(FIND "${path}" "${own}/" inside) # of a folder that is seen as a whole
    if(NOT inside EQUAL 0)
      file(MAKE_DIRECTORY ${parent})
      file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${path} ${folder}/${path} SYMBOLIC)
    endif()
  endforeach()
  target_include_directories(${target} PRIVATE ${folder})
endfunction()

if(OATO_COVERAGE AND CMAKE_C_COMPILER_LAUNCHER MATCHES "PWD=/proc/self/cwd")
  # These objects take their build folder for the current one, which is where a program runs.
  file(WRITE ${CMAKE_BINARY_DIR}/counts.cmake
    "set(ENV{GCOV_PREFIX} ${CMAKE_BINARY_DIR})\nset(ENV{GCOV_PREFIX_STRIP} 3)\n")
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/counts.cmake)
endif()

# oato_counts(TARGET SOURCE...): which lines of these run is counted. Others are compiled without the
# flags: a later -fno-test-coverage would keep ccache from storing the object.
function(oato_counts target)
  if(OATO_COVERAGE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fprofile-arcs -ftest-coverage)
    target_link_options(${target} PUBLIC --coverage)
  endif()
endfunction()

# oato_room(NAME SOURCES a.c b.c USES base kernels LINKS glpk OWN header.h UNCOUNTED b.c)
# A static library. Headers are included as "room/header.h"; OWN: those of its folder that it sees, if not
# all of them. UNCOUNTED: those of its sources whose lines are not counted.
function(oato_room name)
  cmake_parse_arguments(R "" "" "SOURCES;USES;LINKS;OWN;UNCOUNTED" ${ARGN})
  add_library(oato_${name} STATIC ${R_SOURCES})
  oato_options(oato_${name})
  set(counted ${R_SOURCES})
  list(REMOVE_ITEM counted ${R_UNCOUNTED})
  oato_counts(oato_${name} ${counted})
  set(OATO_USES_${name} ${R_USES} CACHE INTERNAL "rooms that ${name} uses")
  file(RELATIVE_PATH own ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(R_OWN)
    list(TRANSFORM R_OWN PREPEND ${own}/)
    set(own ${R_OWN})
  endif()
  oato_sees(oato_${name} ${name} "${own}" ${R_USES})
  foreach(room IN LISTS R_USES)
    target_link_libraries(oato_${name} PUBLIC oato_${room})
  endforeach()
  target_link_libraries(oato_${name} PRIVATE ${R_LINKS})
endfunction()

# oato_program(oato-run SOURCES main.c USES executor ...)
function(oato_program name)
  cmake_parse_arguments(P "" "" "SOURCES;USES;LINKS" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  oato_options(${name})
  oato_counts(${name} ${P_SOURCES})
  file(RELATIVE_PATH own ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  oato_sees(${name} ${name} ${own} ${P_USES})
  foreach(room IN LISTS P_USES)
    target_link_libraries(${name} PRIVATE oato_${room})
  endforeach()
  target_link_libraries(${name} PRIVATE ${P_LINKS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# For tests, which see every header.
function(oato_flags target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  oato_options(${target})
endfunction()

function(oato_options target)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE OATO_VERSION="${PROJECT_VERSION}")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Werror=switch
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes> -Wvla -fno-math-errno -ffp-contract=off)
  if(OATO_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(OATO_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${OATO_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    target_compile_options(${target} PRIVATE -g1) # lines, which is what a report shows; less to compile
    target_link_options(${target} PUBLIC -fsanitize=${OATO_SANITIZE})
  endif()
  target_link_libraries(${target} PUBLIC Threads::Threads m)
endfunction()

# oato_test(NAME SOURCES test_x.c USES models LABELS slow ENV K=V)
# A cmocka program; ctest runs it from the source tree so that tests/data is found.
function(oato_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;USES;LINKS;LABELS;ENV" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  oato_flags(${name})
  if(OATO_SANITIZE)
    target_compile_options(${name} PRIVATE -O1) # half the time; what takes long is not in tests
  endif()
  foreach(room IN LISTS T_USES)
    target_link_libraries(${name} PRIVATE oato_${room})
  endforeach()
  target_link_libraries(${name} PRIVATE cmocka ${T_LINKS})
  target_compile_definitions(${name} PRIVATE OATO_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 900) # a slow, shared host is no failure
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}"
    ENVIRONMENT "${T_ENV}")
endfunction()

# Tests whose programs take both cores of a small machine: their threads spin while they wait for each
# other. They begin first, and tests of one core fill up what they leave.
function(oato_both_cores) # TEST...
  set_tests_properties(${ARGN} PROPERTIES PROCESSORS 2 COST 500)
endfunction()
