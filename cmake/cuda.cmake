# Device code: each .cu file is compiled for all architectures into one image, which becomes bytes of the
# library that loads it. No toolkit is linked, and without a compiler everything else builds.
#
# The compiler is the nvcc of $CUDACXX, of the PATH or of /usr/local/cuda, CUDA 12 or later, or else
# NVIDIA's compiler library (NVRTC) that scripts/setup has fetched. -DOATO_NVCC=OFF does without.
include_guard()
enable_language(ASM)

set(cuda_cache $ENV{OATO_CACHE})
if(NOT cuda_cache)
  set(cuda_cache $ENV{HOME}/.cache/oato)
endif()
if(IS_ABSOLUTE "${OATO_NVCC}" AND NOT EXISTS "${OATO_NVCC}")
  unset(OATO_NVCC CACHE) # it was there once
endif()
find_program(OATO_NVCC NAMES $ENV{CUDACXX} nvcc PATHS /usr/local/cuda/bin
  DOC "The CUDA compiler, nvcc or a libnvrtc; OFF: none")
if(OATO_NVCC MATCHES "NOTFOUND" AND NOT CMAKE_CROSSCOMPILING)
  find_file(OATO_NVCC libnvrtc.so.12 PATHS ${cuda_cache}/cuda/cuda_nvrtc/lib NO_DEFAULT_PATH)
endif()
set(OATO_CUDA_ARCHITECTURES 75 80 86 89 90 100 120 CACHE STRING
  "GPUs whose machine code is built, as nvcc numbers them, those that it does not know left out; native: this machine's")

# The GPUs that the compiler knows.
if(OATO_NVCC MATCHES "libnvrtc")
  set(known 75 80 86 87 89 90 100 101 103 120 121) # 12.9 of scripts/setup
elseif(OATO_NVCC)
  execute_process(COMMAND ${OATO_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
  string(REGEX MATCHALL "[0-9]+" known "${known}")
endif()

# In the place of `native`: what it compiles for the GPUs of this machine.
if(OATO_NVCC AND OATO_CUDA_ARCHITECTURES STREQUAL native)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE ignored)
  set(OATO_CUDA_ARCHITECTURES "")
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" gpus "${gpus}")
  foreach(gpu IN LISTS gpus)
    string(REPLACE "." "" gpu ${gpu})
    if(gpu IN_LIST known AND NOT gpu IN_LIST OATO_CUDA_ARCHITECTURES)
      list(APPEND OATO_CUDA_ARCHITECTURES ${gpu})
    endif()
  endforeach()
endif()

# What the compiler is told, in OATO_NVCC_FLAGS, for what, in OATO_CUDA_TARGETS (sm_90: machine code,
# compute_90: PTX), and the major version of CUDA, which is that of the oldest
# drivers that load what it makes (12: R525, 13: R580), in OATO_CUDA_MAJOR. PTX needs a driver of the
# whole version, OATO_CUDA_VERSION; GPUs with machine code of their own, OATO_CUDA_BUILT, do not. Machine code runs on later GPUs of its generation (80 on 87,
# 100 on 103); PTX is there for other ones: for those between 90 and the newest that we compile for, and
# for those after it.
function(cuda_configure)
  if(OATO_NVCC MATCHES "libnvrtc")
    get_filename_component(folder ${OATO_NVCC} DIRECTORY)
    file(GLOB text ${folder}/libnvrtc-builtins.so.*.*)
    string(REGEX REPLACE ".*libnvrtc-builtins.so.([0-9]+[.][0-9]+).*" "release \\1" text "${text}")
  else()
    execute_process(COMMAND ${OATO_NVCC} --version OUTPUT_VARIABLE text ERROR_VARIABLE text)
  endif()
  if(NOT text MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "${OATO_NVCC} is no CUDA compiler that runs here; -DOATO_NVCC=OFF does without:\n${text}")
  endif()
  set(major ${CMAKE_MATCH_1})
  set(version ${major}.${CMAKE_MATCH_2})
  if(major LESS 12)
    message(FATAL_ERROR "${OATO_NVCC} is of CUDA ${version}; 12.0 or later is needed, or -DOATO_NVCC=OFF")
  endif()
  # Sums and products are rounded as they are written, as everywhere here: kernels say fmaf.
  set(flags -std=c++17 -fmad=false)
  set(built ${OATO_CUDA_ARCHITECTURES})
  foreach(arch IN LISTS OATO_CUDA_ARCHITECTURES)
    if(NOT arch IN_LIST known)
      list(REMOVE_ITEM built ${arch})
    endif()
  endforeach()
  if(NOT built)
    message(FATAL_ERROR "${OATO_NVCC} compiles for none of OATO_CUDA_ARCHITECTURES ${OATO_CUDA_ARCHITECTURES}")
  endif()
  list(GET built -1 newest)
  list(TRANSFORM built PREPEND sm_ OUTPUT_VARIABLE targets)
  list(APPEND targets compute_${newest})
  if(90 IN_LIST built AND NOT newest EQUAL 90)
    list(APPEND targets compute_90)
  endif()
  if(OATO_NVCC MATCHES "libnvrtc")
    set(includes ${folder}/../include ${folder}/../../cuda_runtime/include ${folder}/../../cuda_cccl/include)
    set(OATO_CUDA_INCLUDES ${includes} PARENT_SCOPE)
    list(TRANSFORM includes PREPEND -I)
    list(APPEND flags ${includes})
    add_executable(compile-device ${CMAKE_CURRENT_LIST_DIR}/compile_device.c)
    oato_options(compile-device)
    target_include_directories(compile-device PRIVATE ${PROJECT_SOURCE_DIR})
    target_include_directories(compile-device SYSTEM PRIVATE ${folder}/../include)
    target_link_libraries(compile-device PRIVATE PkgConfig::ZLIB ${OATO_NVCC})
  else()
    list(APPEND flags -Werror all-warnings -Wno-deprecated-gpu-targets --threads 2)
    # What every driver of the version unpacks.
    if(major LESS 13)
      list(APPEND flags -Xfatbin -compress-all)
    else()
      list(APPEND flags --compress-mode=size)
    endif()
    foreach(target IN LISTS targets)
      string(REGEX REPLACE "^sm_" compute_ from ${target})
      string(REGEX REPLACE "^(compute_8).$" "\\10" from ${from}) # one front end's pass for all of 8
      if(target MATCHES "^compute_")
        set(from ${target})
      endif()
      list(APPEND flags -gencode arch=${from},code=${target})
    endforeach()
  endif()
  message(STATUS "CUDA ${version}: ${OATO_NVCC}, for ${built}; needs a driver of CUDA ${major}.0 or newer")
  set(OATO_NVCC_FLAGS ${flags} PARENT_SCOPE)
  set(OATO_CUDA_TARGETS ${targets} PARENT_SCOPE)
  set(OATO_CUDA_MAJOR ${major} PARENT_SCOPE)
  set(OATO_CUDA_VERSION ${version} PARENT_SCOPE)
  string(REPLACE ";" ", sm_" built "sm_${built}")
  set(OATO_CUDA_BUILT ${built} PARENT_SCOPE)
endfunction()

if(OATO_NVCC AND OATO_CUDA_ARCHITECTURES)
  cuda_configure()
else()
  set(OATO_CUDA_MAJOR 12) # of the functions that the device calls
  set(OATO_CUDA_VERSION 12.0)
  set(OATO_CUDA_BUILT none)
  message(STATUS "No CUDA compiler or no GPU to compile for: built without kernels for GPUs")
  set(OATO_NVCC OFF)
endif()

# oato_fatbin(TARGET source.cu SYMBOL): the image of the source becomes part of the target as
# `const unsigned char SYMBOL[]`, 64-byte aligned. Without a compiler it is empty: one zero byte.
# kernels/cuda/cuda_image.h says what an image is.
function(oato_fatbin target source symbol)
  get_filename_component(source ${source} ABSOLUTE)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.fatbin)
  set(assembly ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.S)
  set(content ".byte 0")
  if(OATO_NVCC MATCHES "libnvrtc")
    set(content "")
    set(pieces "")
    list(TRANSFORM OATO_CUDA_INCLUDES PREPEND "-isystem" OUTPUT_VARIABLE system)
    foreach(gpu IN LISTS OATO_CUDA_TARGETS)
      set(piece ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.${gpu})
      # the C compiler says what is included, for the library does not
      add_custom_command(OUTPUT ${piece} DEPFILE ${piece}.d DEPENDS ${source} compile-device
        COMMAND ${CMAKE_C_COMPILER} -x c -MM -MT ${piece} -MF ${piece}.d -I ${PROJECT_SOURCE_DIR} ${system} ${source}
        COMMAND compile-device ${source} ${gpu} ${piece} ${OATO_NVCC_FLAGS} -I${PROJECT_SOURCE_DIR}
        COMMENT "Compiling device code ${symbol} for ${gpu}" VERBATIM)
      string(APPEND content ".balign 8\n    .incbin \"${piece}\"\n    ")
      list(APPEND pieces ${piece})
    endforeach()
    string(APPEND content ".balign 8\n    .quad 0")
    set_source_files_properties(${assembly} PROPERTIES OBJECT_DEPENDS "${pieces}")
  elseif(OATO_NVCC)
    set(content ".incbin \"${image}\"")
    add_custom_command(OUTPUT ${image} DEPFILE ${image}.d DEPENDS ${source} ${OATO_NVCC}
      COMMAND ${OATO_NVCC} ${OATO_NVCC_FLAGS} -I ${PROJECT_SOURCE_DIR} -MD -MT ${image} -MF ${image}.d
        -fatbin -o ${image} ${source}
      COMMENT "Compiling device code ${symbol}" VERBATIM)
    set_source_files_properties(${assembly} PROPERTIES OBJECT_DEPENDS ${image})
  endif()
  file(CONFIGURE OUTPUT ${assembly} @ONLY CONTENT
"    .section .rodata
    .balign 64
    .globl @symbol@
    .type @symbol@, %object
@symbol@:
    @content@
    .size @symbol@, . - @symbol@
    .section .note.GNU-stack, \"\", %progbits
")
  target_sources(${target} PRIVATE ${assembly})
endfunction()
